"""Whose job is on a GPU: fake trees of /proc as Slurm, Kubernetes and containers leave them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from bus.memory import MemoryBus
from collector.agent import CollectorService
from collector.clock import ManualClock
from collector.jobs.attribution import Attribution
from collector.jobs.cgroups import membership
from collector.jobs.settings import JobSettings
from collector.settings import CollectorSettings
from collector.source import Reading
from collector.sources import open_jobs
from schemas.codec import decode_sample
from schemas.sample import JobRef
from schemas.topics import SAMPLES

NOW = 1_790_000_000_000
HEX = "0123456789abcdef" * 4
UID = "11111111-2222-3333-4444-555555555555"
GPUS = ("GPU-a", "GPU-b")

SLURM_V1 = "12:memory:/slurm/uid_1000/job_42/step_0/task_0\n1:name=systemd:/system.slice\n"
SLURM_V2 = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"
KUBE_SYSTEMD = (
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}"
    f".slice/cri-containerd-{HEX}.scope\n"
)
KUBE_CGROUPFS = f"3:cpu:/kubepods/besteffort/pod{UID}/{HEX}\n"
KUBE_GUARANTEED = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{HEX}.scope\n"
DOCKER_V1 = f"5:devices:/docker/{HEX}\n"
DOCKER_V2 = f"0::/system.slice/docker-{HEX}.scope\n"
CONTAINERD = f"0::/system.slice/containerd.service/default:cri-containerd:{HEX}\n"
PODMAN = f"0::/user.slice/user-1000.slice/libpod-{HEX}.scope\n"
BARE = "0::/user.slice/user-1000.slice/session-3.scope\n"


class Host:
    """A fake root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir(parents=True)

    def process(
        self,
        pid: int,
        cgroup: str = BARE,
        environment: dict[str, str] | None = None,
        *,
        uid: int = 1000,
        born: int = 500,
    ) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        rest = " ".join(["S", *["0"] * 18, str(born), "0"])
        (folder / "stat").write_text(f"{pid} (a (odd) name) {rest}\n")
        (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "cgroup").write_text(cgroup)
        said = {"SECRET": "swordfish", **(environment or {})}
        text = "\0".join(f"{name}={value}" for name, value in said.items())
        (folder / "environ").write_bytes(text.encode() + b"\0")
        (folder / "cmdline").write_bytes(b"python\0--token\0swordfish\0")

    def pod(self, uid: str, namespace: str, name: str) -> None:
        (self.root / "var/log/pods" / f"{namespace}_{name}_{uid}").mkdir(parents=True)

    def jobs(
        self, pids: Mapping[str, tuple[int, ...]] | None, **settings: object
    ) -> tuple[JobRef, ...] | None:
        chosen = JobSettings.model_validate({"root": self.root, **settings})
        return Attribution(chosen).jobs(NOW, GPUS, pids)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "root")


@pytest.mark.parametrize(
    ("text", "slurm", "pod", "container"),
    [
        (SLURM_V1, "42", None, None),
        (SLURM_V2, "42", None, None),
        (f"0::/system.slice/node7_slurmstepd.scope/job_7/step_batch/docker-{HEX}.scope", None,
         None, HEX),
        (KUBE_SYSTEMD, None, UID, HEX),
        (KUBE_CGROUPFS, None, UID, HEX),
        (KUBE_GUARANTEED, None, UID, None),
        (DOCKER_V1, None, None, HEX),
        (DOCKER_V2, None, None, HEX),
        (CONTAINERD, None, None, HEX),
        (PODMAN, None, None, HEX),
        (BARE, None, None, None),
        ("0::/\n", None, None, None),
        ("", None, None, None),
        ("garbage\n::\n:", None, None, None),
        ("0::/home/job_42/slurm", None, None, None),
    ],
)  # fmt: skip
def test_control_groups_tell_job_pod_and_container(
    text: str, slurm: str | None, pod: str | None, container: str | None
) -> None:
    found = membership(text)
    assert (found.pod_uid, found.container) == (pod, found.container)
    if container is not None:
        assert found.container == container
    if slurm is not None or "job" not in text:
        assert found.slurm_job == slurm


@pytest.mark.parametrize("cgroup", [SLURM_V1, SLURM_V2])
def test_a_slurm_job_is_found_by_its_control_group_alone(host: Host, cgroup: str) -> None:
    host.process(10, cgroup)
    (job,) = host.jobs({"GPU-a": (10,)}) or ()
    assert (job.job, job.gpus, job.pids) == ("slurm/42", ("GPU-a",), (10,))


def test_slurms_environment_gives_project_array_and_rank(host: Host) -> None:
    said = {"SLURM_JOB_ID": "42", "SLURM_JOB_ACCOUNT": "physics", "SLURM_ARRAY_JOB_ID": "40"}
    host.process(10, SLURM_V2, {**said, "SLURM_ARRAY_TASK_ID": "2", "SLURM_PROCID": "3"})
    host.process(11, BARE, {**said, "SLURM_PROCID": "4"})
    first, second = host.jobs({"GPU-a": (10,), "GPU-b": (11,)}) or ()
    assert (first.job, first.project, first.rank) == ("slurm/40_2", "physics", 3)
    assert (second.job, second.rank) == ("slurm/42", 4)


@pytest.mark.parametrize("cgroup", [KUBE_SYSTEMD, KUBE_CGROUPFS])
def test_a_pod_is_named_as_the_kubelets_log_folder_names_it(host: Host, cgroup: str) -> None:
    host.process(10, cgroup)
    (unnamed,) = host.jobs({"GPU-a": (10,)}) or ()
    assert (unnamed.job, unnamed.project) == (f"pod/{UID}", None)
    host.pod(UID, "ml-team", "trainer-0")
    (named,) = host.jobs({"GPU-a": (10,)}) or ()
    assert (named.job, named.project) == ("ml-team/trainer-0", "ml-team")
    assert named.container == HEX[:12]


@pytest.mark.parametrize("cgroup", [DOCKER_V1, DOCKER_V2, CONTAINERD, PODMAN])
def test_a_container_without_a_pod_is_its_own_job(host: Host, cgroup: str) -> None:
    host.process(10, cgroup)
    (job,) = host.jobs({"GPU-b": (10,)}) or ()
    assert (job.job, job.container, job.gpus) == (f"container/{HEX[:12]}", HEX[:12], ("GPU-b",))


def test_one_job_on_two_gpus_is_one_entry_and_two_jobs_on_one_gpu_are_two(host: Host) -> None:
    host.process(10, SLURM_V2)
    host.process(11, SLURM_V2)
    host.process(12, DOCKER_V2)
    found = host.jobs({"GPU-a": (10, 12), "GPU-b": (11,)}) or ()
    assert {job.job: job.gpus for job in found} == {
        "slurm/42": ("GPU-a", "GPU-b"),
        f"container/{HEX[:12]}": ("GPU-a",),
    }


def test_a_process_of_no_job_makes_none_and_no_process_makes_an_empty_list(host: Host) -> None:
    host.process(10, BARE)
    assert host.jobs({"GPU-a": (10, 99)}) == ()
    assert host.jobs({}) == ()
    assert host.jobs(None) is None


def test_a_variable_of_the_site_wins(host: Host) -> None:
    host.process(10, SLURM_V2, {"MY_RUN": "run-7", "TEAM": "vision"})
    pids = {"GPU-a": (10,)}
    (job,) = host.jobs(pids, variable="MY_RUN", project_variable="TEAM") or ()
    assert (job.job, job.project) == ("run-7", "vision")


def test_users_appear_only_as_a_keyed_hash_and_only_if_asked_for(host: Host) -> None:
    host.process(10, SLURM_V2, uid=1000)
    host.process(11, DOCKER_V2, uid=1001)
    pids = {"GPU-a": (10,), "GPU-b": (11,)}
    assert {job.user_hash for job in host.jobs(pids) or ()} == {None}
    hashes = [job.user_hash for job in host.jobs(pids, users=True, user_key="k") or ()]
    again = [job.user_hash for job in host.jobs(pids, users=True, user_key="k") or ()]
    other = [job.user_hash for job in host.jobs(pids, users=True, user_key="other") or ()]
    assert hashes == again
    assert len({*hashes, *other}) == 4
    assert all(text and "1000" not in text for text in hashes)
    with pytest.raises(ValidationError, match="user_key"):
        JobSettings(users=True)


def test_neither_command_lines_nor_other_variables_are_published(host: Host) -> None:
    host.process(10, SLURM_V2, {"SLURM_JOB_ID": "42"})
    assert "swordfish" not in repr(host.jobs({"GPU-a": (10,)}))


def test_what_may_not_be_read_costs_only_what_stands_there(host: Host) -> None:
    host.process(10, SLURM_V2, {"SLURM_JOB_ACCOUNT": "physics"})
    environ = host.root / "proc/10/environ"
    environ.unlink()
    environ.mkdir()  # a folder cannot be read as a file, whoever tries
    (job,) = host.jobs({"GPU-a": (10,)}) or ()
    assert (job.job, job.project) == ("slurm/42", None)


def test_what_is_known_of_a_process_is_asked_again_after_a_while(host: Host) -> None:
    host.process(10, SLURM_V2)
    source = Attribution(JobSettings(root=host.root, refresh_seconds=30.0))
    pids = {"GPU-a": (10,)}

    def name(ts: int, ids: Mapping[str, tuple[int, ...]]) -> list[str]:
        return [job.job for job in source.jobs(ts, GPUS, ids) or ()]

    assert name(NOW, pids) == ["slurm/42"]
    host.process(10, DOCKER_V2, born=900)
    assert name(NOW + 29_000, pids) == ["slurm/42"]
    assert name(NOW + 30_000, pids) == [f"container/{HEX[:12]}"]
    assert name(NOW + 31_000, {}) == []
    host.process(10, SLURM_V2, born=950)
    assert name(NOW + 32_000, pids) == ["slurm/42"]  # it had left: nothing is believed


def test_a_file_gives_jobs_for_gpus_that_no_process_claims(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "jobs.json"
    entries = [
        {"gpus": ["GPU-a", "GPU-z"], "job": "file-1", "project": "p", "more": 1},
        {"gpus": "all", "job": "file-2"},
    ]
    path.write_text(json.dumps(entries))
    host.process(10, SLURM_V2)
    found = host.jobs({"GPU-a": (10,)}, file=path, job="rest") or ()
    assert {job.job: job.gpus for job in found} == {"slurm/42": ("GPU-a",), "file-2": ("GPU-b",)}
    found = host.jobs(None, file=path) or ()
    assert {job.job: job.gpus for job in found} == {"file-1": ("GPU-a",), "file-2": GPUS}


def test_a_file_is_read_again_when_it_changes_and_damage_keeps_what_it_said(
    host: Host, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.json"
    source = Attribution(JobSettings(root=host.root, file=path, processes=False))

    def names() -> list[str]:
        return [job.job for job in source.jobs(NOW, GPUS, None) or ()]

    assert names() == []
    path.write_text('[{"gpus": "all", "job": "one"}]')
    assert names() == ["one"]
    path.write_text('[{"gpus": "all", "job"')
    os.utime(path, ns=(1, 1))
    assert names() == ["one"]
    path.write_text('[{"gpus": "all", "job": "three"}]')
    assert names() == ["three"]
    path.unlink()
    assert names() == []


def test_a_job_named_in_the_settings_has_every_free_gpu(host: Host) -> None:
    host.process(10, SLURM_V2)
    found = host.jobs({"GPU-a": (10,)}, job="demo", project="lab") or ()
    assert [(job.job, job.gpus) for job in found] == [
        ("slurm/42", ("GPU-a",)),
        ("demo", ("GPU-b",)),
    ]
    (job,) = host.jobs(None, job="demo", project="lab") or ()
    assert (job.gpus, job.project) == (GPUS, "lab")


class WithPids:
    """A source that knows the processes of its GPUs."""

    kind = "simulated"
    exhausted = False

    def read(self, ts_ms: int) -> list[Reading]:
        return [
            Reading(node="n1", ts=ts_ms, gpus=GPUS, values={"power_watts": [1.0, 2.0]},
                    pids={"GPU-a": (10,), "GPU-b": (10,)})
        ]  # fmt: skip

    def close(self) -> None:
        """Nothing to let go of."""


def test_the_agent_publishes_the_jobs_of_the_processes(host: Host) -> None:
    host.process(10, SLURM_V2)
    bus = MemoryBus()
    chosen = CollectorSettings.model_validate({"source": "simulated", "node": "n1"})
    service = CollectorService(
        WithPids(),
        bus,
        chosen,
        clock=ManualClock(stop_at=2.5),
        jobs=Attribution(JobSettings(root=host.root)),
    )
    service.run(threading.Event())
    reader = bus.subscriber(group="t", topics=[SAMPLES.full_name()])
    samples = [decode_sample(record.value) for record in reader.poll(100, 0.0)]
    reader.close()
    first, *rest = samples
    assert first.jobs == (JobRef(gpus=GPUS, job="slurm/42", pids=(10,)),)
    assert all(sample.jobs is None for sample in rest[:-1]), "unchanged jobs do not travel"


def test_jobs_are_looked_for_only_beside_gpus_of_this_node() -> None:
    for source, wanted in (("nvml", True), ("simulated", False), ("replay", False)):
        chosen = CollectorSettings.model_validate({"source": source, "node": "n1"})
        assert (open_jobs(chosen) is not None) == wanted
