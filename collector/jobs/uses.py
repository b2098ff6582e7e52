"""Who uses which GPU, as gathered before it becomes what is published.

Pure: what the processes say and what the kubelet says are laid over each other here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from collector.jobs.podresources import Holding
from schemas.sample import JobRef

__all__ = ["Named", "Use", "Users", "with_holdings"]


class Named(Enum):
    """How a job got its name."""

    #: By the site itself: its variable, or Slurm.
    SITE = auto()
    #: By namespace and pod.
    POD = auto()
    #: Not yet by a name that people know: only the pod's UID or the container's id is known.
    BY_ID = auto()


@dataclass(frozen=True, slots=True)
class Use:
    """What all processes of one entry have in common."""

    job: str
    project: str | None = None
    user_hash: str | None = None
    container: str | None = None
    rank: int | None = None
    named: Named = Named.SITE


class Users:
    """Uses, each with its GPUs and process ids, in the order of their first appearance."""

    def __init__(self) -> None:
        self._uses: dict[Use, tuple[dict[str, None], dict[int, None]]] = {}

    def add(self, use: Use, gpus: Iterable[str], pids: Iterable[int] = ()) -> None:
        """Add GPUs and processes to a use."""
        members, ids = self._uses.setdefault(use, ({}, {}))
        members.update(dict.fromkeys(gpus))
        ids.update(dict.fromkeys(pids))

    def items(self) -> list[tuple[Use, tuple[str, ...], tuple[int, ...]]]:
        """Return every use with its GPUs and processes."""
        return [(use, tuple(gpus), tuple(pids)) for use, (gpus, pids) in self._uses.items()]

    def on(self, gpu: str) -> list[Use]:
        """Return the uses of one GPU."""
        return [use for use, (gpus, _) in self._uses.items() if gpu in gpus]

    def refs(self) -> list[JobRef]:
        """Return what is published."""
        return [
            JobRef(
                gpus=gpus,
                job=use.job,
                project=use.project,
                user_hash=use.user_hash,
                container=use.container,
                rank=use.rank,
                pids=pids,
            )
            for use, gpus, pids in self.items()
        ]


def with_holdings(users: Users, gpus: Sequence[str], holdings: Sequence[Holding]) -> Users:
    """Lay over each other what the processes and what the kubelet say.

    Parameters
    ----------
    users
        By processes; not changed.
    gpus
        GPUs and MIG instances of the reading.
    holdings
        Who was given what.

    Returns
    -------
    Users
        A job known only by an id has the name of the one pod that holds all its GPUs; a job that
        is a pod has the container's name; a pod that holds a GPU without any process on it has
        an entry of its own, unless the site's own words name a job on that GPU.
    """
    held: dict[str, list[Holding]] = {gpu: [] for gpu in gpus}
    for holding in holdings:
        if holding.device in held:
            held[holding.device].append(holding)
    merged = Users()
    for use, members, pids in users.items():
        merged.add(_renamed(use, members, held), members, pids)
    for gpu in gpus:
        uses = merged.on(gpu)
        if any(use.named == Named.SITE for use in uses):
            continue
        present = {use.job for use in uses}
        for holding in held[gpu]:
            if holding.job not in present:
                use = Use(
                    job=holding.job,
                    project=holding.namespace,
                    container=holding.container or None,
                    named=Named.POD,
                )
                merged.add(use, (gpu,))
    return merged


def _renamed(use: Use, gpus: Sequence[str], held: Mapping[str, Sequence[Holding]]) -> Use:
    """Give a use the names that people know, where the kubelet tells them without doubt."""
    if use.named == Named.SITE:
        return use
    pods = [{(item.job, item.namespace) for item in held[gpu]} for gpu in gpus]
    if use.named == Named.BY_ID and all(pods) and len(set[tuple[str, str]]().union(*pods)) == 1:
        ((job, namespace),) = pods[0]
        use = replace(use, job=job, project=use.project or namespace, named=Named.POD)
    names = {item.container for gpu in gpus for item in held[gpu] if item.job == use.job}
    if len(names) == 1:
        use = replace(use, container=names.pop() or use.container)
    return use
