"""From processes to jobs: who uses which GPU, as Slurm, Kubernetes, a container or a file say."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace

from collector.jobs.kubelet import Kubelet
from collector.jobs.proc import HostProcesses, ProcessFacts
from collector.jobs.settings import JobSettings
from collector.jobs.table import JobTable
from collector.jobs.uses import Named, Use, Users, with_holdings
from schemas.sample import JobRef

__all__ = ["Attribution"]

_SLURM_ID, _SLURM_PROJECT = "SLURM_JOB_ID", "SLURM_JOB_ACCOUNT"
_ARRAY_JOB, _ARRAY_TASK = "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"
#: Who of several says the rank: Slurm, torchrun, Open MPI, PMI.
_RANKS = ("SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_HASH_CHARS = 16
_TEXT_CHARS = 253
_SHORT_ID = 12


class Attribution:
    """Source of jobs. Belongs to one thread.

    Parameters
    ----------
    settings
        What is asked, and what may be published.
    """

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        own = (settings.variable, settings.project_variable)
        self._host = HostProcesses(
            settings.root,
            [
                *(_SLURM_ID, _SLURM_PROJECT, _ARRAY_JOB, _ARRAY_TASK, *_RANKS),
                *(name for name in own if name),
            ],
        )
        self._table = None if settings.file is None else JobTable(settings.file)
        self._kubelet: Kubelet | None = None
        if settings.pod_resources:
            self._kubelet = Kubelet(settings.socket, settings.refresh_seconds)
        self._known: dict[int, tuple[int, ProcessFacts]] = {}
        self._pods: dict[str, tuple[str, str]] = {}
        self._pods_at: int | None = None

    def jobs(
        self, ts_ms: int, gpus: tuple[str, ...], pids: Mapping[str, tuple[int, ...]] | None
    ) -> tuple[JobRef, ...] | None:
        """Return the jobs: by process, else by the kubelet, by the file, by the setting."""
        settings = self._settings
        holdings = None if self._kubelet is None else self._kubelet.holdings(ts_ms)
        listed = () if self._table is None else self._table.jobs(gpus)
        asked = settings.processes and pids is not None
        if not asked and holdings is None and self._table is None and settings.job is None:
            return None
        users = self._of_processes(ts_ms, gpus, pids or {}) if asked else Users()
        refs = with_holdings(users, gpus, holdings or ()).refs()
        taken = {gpu for ref in refs for gpu in ref.gpus}
        refs += [rest for job in listed if (rest := _without(job, taken)) is not None]
        taken |= {gpu for ref in refs for gpu in ref.gpus}
        free = tuple(gpu for gpu in gpus if gpu not in taken)
        if settings.job is not None and free:
            refs.append(JobRef(gpus=free, job=settings.job, project=settings.project))
        return tuple(refs)

    def begin(self, ts_ms: int, seconds: float) -> None:
        """Ask the kubelet before the first reading, waiting at most so long for its answer."""
        if self._kubelet is not None:
            self._kubelet.begin(ts_ms, seconds)

    def health(self) -> Mapping[str, object]:
        """Return what came of asking the kubelet; empty where it is not asked."""
        return {} if self._kubelet is None else {"kubelet": self._kubelet.health()}

    def close(self) -> None:
        """Let go of what is open."""
        if self._kubelet is not None:
            self._kubelet.close()

    def _of_processes(
        self, ts_ms: int, gpus: tuple[str, ...], pids: Mapping[str, tuple[int, ...]]
    ) -> Users:
        self._forget(pids)
        users = Users()
        for gpu in gpus:
            for pid in pids.get(gpu, ()):
                use = self._use(pid, ts_ms)
                if use is not None:
                    users.add(use, (gpu,), (pid,))
        return users

    def _forget(self, pids: Mapping[str, tuple[int, ...]]) -> None:
        present = {pid for ids in pids.values() for pid in ids}
        for pid in self._known.keys() - present:
            del self._known[pid]

    def _use(self, pid: int, ts_ms: int) -> Use | None:
        facts = self._facts(pid, ts_ms)
        if facts is None:
            return None
        use = self._named(facts, ts_ms)
        if use is None:
            return None
        return replace(
            use,
            job=use.job[:_TEXT_CHARS],
            project=None if use.project is None else use.project[:_TEXT_CHARS],
            user_hash=self._user(facts),
            rank=_rank(facts.environment),
        )

    def _facts(self, pid: int, ts_ms: int) -> ProcessFacts | None:
        known = self._known.get(pid)
        fresh = 1000.0 * self._settings.refresh_seconds
        if known is not None and 0 <= ts_ms - known[0] < fresh:
            return known[1]
        facts = self._host.read(pid)
        if facts is None:
            self._known.pop(pid, None)
            return None
        self._known[pid] = (ts_ms, facts)
        return facts

    def _named(self, facts: ProcessFacts, ts_ms: int) -> Use | None:
        """Name the job: by the site's variable, by Slurm, by the pod, by the container."""
        settings, said, belongs = self._settings, facts.environment, facts.belongs
        container = belongs.container and belongs.container[:_SHORT_ID]
        own = said.get(settings.project_variable or "")
        if settings.variable and settings.variable in said:
            return Use(job=said[settings.variable], project=own, container=container)
        slurm = belongs.slurm_job or said.get(_SLURM_ID)
        if slurm is not None:
            if said.get(_ARRAY_JOB) and said.get(_ARRAY_TASK):
                slurm = f"{said[_ARRAY_JOB]}_{said[_ARRAY_TASK]}"
            project = own or said.get(_SLURM_PROJECT)
            return Use(job=f"slurm/{slurm}", project=project, container=container)
        if belongs.pod_uid is not None:
            namespace, name = self._pod(belongs.pod_uid, ts_ms)
            return Use(
                job=f"{namespace}/{name}" if namespace else f"pod/{belongs.pod_uid}",
                project=own or namespace,
                container=container,
                named=Named.POD if namespace else Named.BY_ID,
            )
        if container is not None:
            job = f"container/{container}"
            return Use(job=job, project=own, container=container, named=Named.BY_ID)
        return None

    def _pod(self, uid: str, ts_ms: int) -> tuple[str | None, str | None]:
        fresh = 1000.0 * self._settings.refresh_seconds
        stale = self._pods_at is None or not 0 <= ts_ms - self._pods_at < fresh
        if uid not in self._pods and stale:
            self._pods, self._pods_at = self._host.pod_names(), ts_ms
        return self._pods.get(uid, (None, None))

    def _user(self, facts: ProcessFacts) -> str | None:
        key = self._settings.user_key
        if not self._settings.users or key is None or facts.uid is None:
            return None
        text = f"uid:{facts.uid}".encode()
        digest = hmac.new(key.get_secret_value().encode(), text, hashlib.sha256)
        return digest.hexdigest()[:_HASH_CHARS]


def _rank(environment: Mapping[str, str]) -> int | None:
    for name in _RANKS:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 9:
            return int(text)
    return None


def _without(job: JobRef, taken: set[str]) -> JobRef | None:
    """Return the entry of the file for the GPUs that no process has claimed."""
    gpus = tuple(gpu for gpu in job.gpus if gpu not in taken)
    if not gpus:
        return None
    return JobRef(
        gpus=gpus, job=job.job, project=job.project, container=job.container, rank=job.rank
    )
