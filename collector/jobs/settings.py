"""Settings of the attribution of GPUs to jobs."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

__all__ = ["JobSettings"]


class JobSettings(BaseModel):
    """How GPUs are attributed to jobs. Command lines are never read."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    processes: bool = Field(
        default=True,
        description="Ask the cgroup and environment of each process on a GPU for its Slurm job, "
        "Kubernetes pod or container. The environment of other users' processes needs "
        "CAP_SYS_PTRACE; in a container the host's processes need hostPID.",
    )
    variable: str | None = Field(
        default=None,
        description="Environment variable of a process that names its job; wins over all else.",
    )
    project_variable: str | None = Field(
        default=None, description="Environment variable of a process that names its project."
    )
    pod_resources: bool = Field(
        default=True,
        description="Ask the kubelet of this node, where there is one, which pod was given which "
        "GPU: names of pods and containers, and pods without a process on their GPU.",
    )
    pod_resources_socket: Path | None = Field(
        default=None,
        description="Socket of its pod-resources API; default: "
        "var/lib/kubelet/pod-resources/kubelet.sock below root.",
    )
    file: Path | None = Field(
        default=None,
        description="JSON file that a scheduler writes: a list of objects with gpus (UUIDs, or "
        'the word "all"), job and optionally project, container, rank. Read again when changed.',
    )
    job: str | None = Field(
        default=None,
        min_length=1,
        description="Job that uses every GPU of this node for which nothing else is known.",
    )
    project: str | None = Field(default=None, min_length=1, description="Project of that job.")
    users: bool = Field(
        default=False,
        description="Publish a keyed hash of the user id of each job's processes; needs user_key.",
    )
    user_key: SecretStr | None = Field(
        default=None,
        description="Key of that hash, the same on all nodes; without it no user can be guessed "
        "by trying all ids.",
    )
    refresh_seconds: float = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="How long what was learnt about a process is believed, and how often the "
        "kubelet is asked, in seconds.",
    )
    root: Path = Field(
        default=Path("/"),
        description="Where the host's /proc and /var/log/pods lie; another folder in a container "
        "that mounts them elsewhere.",
    )

    @property
    def socket(self) -> Path:
        """Where the kubelet is asked."""
        usual = self.root / "var/lib/kubelet/pod-resources/kubelet.sock"
        return usual if self.pod_resources_socket is None else self.pod_resources_socket

    @model_validator(mode="after")
    def _key_for_users(self) -> JobSettings:
        if self.users and self.user_key is None:
            raise ValueError("users needs user_key: a hash without a key can be undone by trying")
        return self
