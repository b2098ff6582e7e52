"""What the host's files tell about one process. Everything may be missing or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collector.jobs.cgroups import Membership, membership

__all__ = ["HostProcesses", "ProcessFacts"]

# An environment may be as large as the kernel lets arguments be; more is not read.
_ENVIRONMENT_BYTES = 2**20
_UID = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)
_POD_FOLDER = re.compile(r"([^_]+)_([^_]+)_([0-9a-f-]{32,36})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """One process.

    Parameters
    ----------
    born
        Start time in the kernel's ticks: a process id that is used again has another one.
    belongs
        By its control groups.
    environment
        Only the variables asked for; empty where it may not be read.
    uid
        Real user id, or None.
    """

    born: str
    belongs: Membership
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None


class HostProcesses:
    """The processes and pods of the host.

    Parameters
    ----------
    root
        Where its ``/proc`` and ``/var/log/pods`` lie.
    variables
        Which environment variables are looked at; no other one is kept.
    """

    def __init__(self, root: Path, variables: Iterable[str]) -> None:
        self._proc = root / "proc"
        self._pods = root / "var/log/pods"
        self._variables = frozenset(variables)

    def born(self, pid: int) -> str | None:
        """Return when a process was started, or None if there is no such process."""
        text = _text(self._proc / str(pid) / "stat")
        # The name in brackets may hold blanks and brackets of its own.
        fields = (text or "").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 else None

    def read(self, pid: int) -> ProcessFacts | None:
        """Return what is known of a process, or None if there is no such process."""
        born = self.born(pid)
        if born is None:
            return None
        folder = self._proc / str(pid)
        uid = _UID.search(_text(folder / "status") or "")
        return ProcessFacts(
            born=born,
            belongs=membership(_text(folder / "cgroup") or ""),
            environment=self._environment(folder / "environ"),
            uid=None if uid is None else int(uid[1]),
        )

    def pod_names(self) -> dict[str, tuple[str, str]]:
        """Return (namespace, name) of the pods of this node by UID, as the kubelet's logs lie."""
        try:
            names = [entry.name for entry in self._pods.iterdir()]
        except OSError:
            return {}
        matches = [match for name in names if (match := _POD_FOLDER.match(name))]
        return {match[3]: (match[1], match[2]) for match in matches}

    def _environment(self, path: Path) -> dict[str, str]:
        try:
            with path.open("rb") as file:
                data = file.read(_ENVIRONMENT_BYTES)
        except OSError:
            return {}
        found = {}
        for entry in data.split(b"\0"):
            name, _, value = entry.decode(errors="replace").partition("=")
            if name in self._variables and value:
                found[name] = value
        return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
