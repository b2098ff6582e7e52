"""What the name of a control group tells: Slurm job, Kubernetes pod, container.

Pure. Names follow Slurm's plugins (``/slurm/uid_1000/job_42/step_0``, version 2 under
``slurmstepd.scope``), the kubelet's two drivers (``pod<uid>``, with ``_`` for ``-`` under systemd)
and the runtimes (``docker-<id>.scope``, ``cri-containerd-<id>.scope``, ``/docker/<id>``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Membership", "membership"]

_SLURM_JOB = re.compile(r"/job_(\d+)(?:/|$)")
_SLURM = re.compile(r"/(?:slurm[^/]*|slurmstepd\.scope)/", re.IGNORECASE)
_POD = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
    r"|[0-9a-f]{32})(?=[/.:]|$)"
)
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Where a process belongs, as far as its control groups tell.

    Parameters
    ----------
    slurm_job
        Number of the Slurm job.
    pod_uid
        UID of the Kubernetes pod, with hyphens as the API writes it.
    container
        Id of the container, 64 hexadecimal digits.
    """

    slurm_job: str | None = None
    pod_uid: str | None = None
    container: str | None = None


def membership(text: str) -> Membership:
    """Read ``/proc/<pid>/cgroup``: lines ``id:controllers:path``, both versions.

    Examples
    --------
    >>> membership("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0").slurm_job
    '42'
    >>> membership("0::/user.slice/user-1000.slice/session-3.scope")
    Membership(slurm_job=None, pod_uid=None, container=None)
    """
    slurm = pod = container = None
    for line in text.splitlines():
        path = line.split(":", 2)[2] if line.count(":") >= 2 else ""
        job = _SLURM_JOB.search(path) if _SLURM.search(path) else None
        slurm = slurm or (job[1] if job else None)
        if "kubepods" in path:
            found = _POD.search(path)
            pod = pod or (found[1].replace("_", "-") if found else None)
        within = _CONTAINER.findall(path)
        container = container or (within[-1] if within else None)
    return Membership(slurm_job=slurm, pod_uid=pod, container=container)
