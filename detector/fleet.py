"""Who is who: GPU UUID to row, node to its GPUs, and what is known of each.

Rows are stable for the life of the state; a GPU that changes its node or slot begins anew,
because its past belongs to another air path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np

from detector.arrays import BoolArray, Field, FloatArray, IntArray, StateTable
from detector.frame import MISSING_CODE
from schemas.pci import canonical_pci
from schemas.sample import (
    CollectorState,
    CollectorStatus,
    GpuInventory,
    Inventory,
    JobRef,
    NodeSample,
)

__all__ = ["FACTS", "Fleet", "GpuRow", "Layout", "NodeRow"]

#: Numbers of a GPU's inventory that detectors may use as columns; NaN where unknown.
#: ``nvlink_board`` is 1 where NVLink is part of the board, by the model's name.
FACTS = (
    "slowdown_celsius",
    "shutdown_celsius",
    "max_operating_celsius",
    "nvlink_links",
    "nvlink_board",
    "pcie_generation_max",
    "pcie_width_max",
)
# Boards whose NVLink is part of the board, unlike a PCIe card that may have a bridge.
_NVLINK_BOARD = re.compile(r"SXM|HBM3|\bG?B[23]00\b|\bH200\b(?! NVL)|\bH20\b")

_T = TypeVar("_T")
_GPU_FIELDS = {
    "model": Field("i4", MISSING_CODE),
    "job": Field("i4", MISSING_CODE),
    "mig_parent": Field("?", 0),
    "mig_instance": Field("?", 0),
    "last_ts": Field("i8", 0),
    "interval": Field("f4"),
    **{name: Field("f4") for name in FACTS},
}
_NODE_FIELDS = {
    "last_ts": Field("i8", 0),
    "interval": Field("f4"),
    "uptime_seconds": Field("f8"),
}


@dataclass(slots=True)
class GpuRow:
    """What is known of one GPU, for the words of an alert."""

    uuid: str
    node: str
    index: int | None = None
    pci: str | None = None
    model: str | None = None
    parent: str | None = None


@dataclass(slots=True)
class NodeRow:
    """What is known of one node.

    Parameters
    ----------
    boot_id, previous_boot, seq, last_ts
        Position in the node's stream of messages.
    gaps
        First and last number of each stretch of messages of this boot that did not come yet.
    candidate, strikes
        Another boot whose messages look old, and how many of them came without one of the
        current boot between them.
    expected
        GPUs that it should have, or None.
    rows
        Rows of the GPUs ever listed here, partitions left out.
    retired
        Those of the rows that the node did not list when it last was complete: GPUs that were
        replaced or taken out on purpose. Nobody misses them when another one goes.
    """

    name: str
    boot_id: str = ""
    previous_boot: str = ""
    seq: int = -1
    last_ts: int = 0
    gaps: list[list[int]] = field(default_factory=list)
    candidate: str = ""
    strikes: int = 0
    expected: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    retired: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Rows of one message, and what was known of them when it came.

    Parameters
    ----------
    present
        How many of the rows the message lists; they come first.
    due
        How many rows stand after them that the node should still list.
    rows
        Rows listed, then rows known and no longer listed: those that are due, then the retired.
    model, job, mig_parent, mig_instance, facts
        What was known of those rows, ``facts`` as (:data:`FACTS`, rows); a later message of the
        same batch must not change it.
    """

    present: int
    due: int
    rows: IntArray
    model: IntArray
    job: IntArray
    mig_parent: BoolArray
    mig_instance: BoolArray
    facts: FloatArray


class Fleet:
    """The tables of GPUs and nodes of one partition."""

    def __init__(self) -> None:
        self.gpus: list[GpuRow] = []
        self.nodes: list[NodeRow] = []
        self.gpu_table = StateTable(_GPU_FIELDS)
        self.node_table = StateTable(_NODE_FIELDS)
        self._gpu_rows: dict[str, int] = {}
        self._node_rows: dict[str, int] = {}
        self._layouts: dict[int, tuple[tuple[str, ...], Layout]] = {}
        self._inventories: dict[int, tuple[object, ...]] = {}
        #: Caches of the rooms that read the tables, by node row and by what stands in a round.
        self.said: dict[int, tuple[Layout, CollectorStatus, Any]] = {}
        self.compositions: dict[tuple[int, ...], tuple[Any, object]] = {}
        self._codes: dict[str, int] = {}
        self._next_code = 0
        #: Rows without a GPU or node: what was there is forgotten.
        self._free_gpus: list[int] = []
        self._free_nodes: list[int] = []
        #: Code of a job to its id and project.
        self.jobs: dict[int, tuple[str, str | None]] = {}
        #: Rows whose history ended since the engine last looked, as they were.
        self.moved: list[tuple[int, GpuRow]] = []

    def node_of(self, name: str) -> int:
        """Return the row of a node, made on first sight."""
        row = self._node_rows.get(name)
        if row is None:
            row = self._free_nodes.pop() if self._free_nodes else len(self.nodes)
            self._node_rows[name] = row
            self.nodes[row : row + 1] = [NodeRow(name)]
            self.node_table.grow(row + 1)
        return row

    def changes_facts(self, node_row: int, sample: NodeSample) -> bool:
        """Tell whether a message changes what is known of rows that earlier messages use.

        The engine finishes those messages first, so that a GPU that changes its node is not
        two rows of one frame and facts do not travel back in time.
        """
        if sample.jobs and self._changes_projects(sample.jobs):
            return True
        known = self._inventories.get(node_row)
        met = known is not None or bool(self.nodes[node_row].rows)
        if sample.inventory is not None and met and known != _facts(sample.inventory):
            return True
        if self._is_cached(node_row, sample):
            return False
        name = self.nodes[node_row].name
        rows = (self._gpu_rows.get(uuid) for uuid in sample.gpu)
        return any(row is not None and self.gpus[row].node != name for row in rows)

    def _changes_projects(self, jobs: Sequence[JobRef]) -> bool:
        """Tell whether a known job is said to be another project's."""
        known = ((self._codes.get(f"job:{one.job}"), (one.job, one.project)) for one in jobs)
        return any(code in self.jobs and self.jobs[code] != said for code, said in known)

    def _is_cached(self, node_row: int, sample: NodeSample) -> bool:
        cached = self._layouts.get(node_row)
        return cached is not None and cached[0] == sample.gpu

    def layout(self, node_row: int, sample: NodeSample) -> Layout:
        """Return the rows of a message of a node; take in new GPUs, jobs and inventory."""
        if sample.inventory is not None:
            uptime = sample.inventory.uptime_seconds
            self.node_table["uptime_seconds"][node_row] = np.nan if uptime is None else uptime
            facts = _facts(sample.inventory)
            if self._inventories.get(node_row) != facts:
                self._take_inventory(node_row, sample.inventory, sample)
                self._inventories[node_row] = facts
        if sample.jobs is not None:
            self._take_jobs(node_row, sample)
        if not self._is_cached(node_row, sample):
            self._layouts[node_row] = (sample.gpu, self._make_layout(node_row, sample))
        return self._layouts[node_row][1]

    def _make_layout(self, node_row: int, sample: NodeSample) -> Layout:
        node = self.nodes[node_row]
        present = [self._gpu_row(node, uuid, sample.parents.get(uuid)) for uuid in sample.gpu]
        listed = set(present)
        gone = [row for row in node.rows if row not in listed]
        if node.expected is not None and len(node.rows) - len(gone) >= node.expected:
            node.retired = gone
        node.retired = [row for row in node.retired if row in gone]
        due = [row for row in gone if row not in node.retired]
        # A GPU is partitioned as soon as a partition of it is listed; its inventory comes later.
        split = [self._gpu_rows[uuid] for uuid in sample.parents.values() if uuid in self._gpu_rows]
        return self.layout_of(present, due, node.retired, split)

    def layout_of(
        self,
        present: Sequence[int],
        due: Sequence[int] = (),
        retired: Sequence[int] = (),
        split: Sequence[int] = (),
    ) -> Layout:
        """Return what is known now of the given rows, in this order; ``split`` are partitioned."""
        rows = np.array([*present, *due, *retired], dtype=np.int64)
        table = self.gpu_table
        return Layout(
            present=len(present),
            due=len(due),
            rows=rows,
            model=table["model"][rows].astype(np.int64),
            job=table["job"][rows].astype(np.int64),
            mig_parent=table["mig_parent"][rows] | np.isin(rows, split),
            mig_instance=table["mig_instance"][rows],
            facts=np.array([table[name][rows] for name in FACTS], dtype=np.float64),
        )

    def _gpu_row(self, node: NodeRow, uuid: str, parent: str | None) -> int:
        row = self._gpu_rows.get(uuid)
        if row is None:
            row = self._free_gpus.pop() if self._free_gpus else len(self.gpus)
            self._gpu_rows[uuid] = row
            self.gpus[row : row + 1] = [GpuRow(uuid, node.name, parent=parent)]
            self.gpu_table.grow(row + 1)
            self.gpu_table["mig_instance"][row] = parent is not None
        gpu = self.gpus[row]
        if gpu.node != node.name:
            self._move(row, node)
        if parent is None and row not in node.rows:
            node.rows.append(row)
        return row

    def _move(self, row: int, node: NodeRow) -> None:
        """Take a GPU over from another node: its history stays behind."""
        old = self.nodes[self._node_rows[self.gpus[row].node]]
        if row in old.rows:
            old.rows.remove(row)
        self._layouts.pop(self._node_rows[old.name], None)
        # What either node says of its GPUs is to be taken anew: the row has forgotten it.
        for name in (old.name, node.name):
            self._inventories.pop(self._node_rows[name], None)
        was = replace(self.gpus[row])
        self.gpus[row].node = node.name
        self._begin_anew(row, was)

    def _begin_anew(self, row: int, was: GpuRow) -> None:
        instance = bool(self.gpu_table["mig_instance"][row])
        self.gpu_table.reset(np.array([row]))
        self.gpu_table["mig_instance"][row] = instance
        self.moved.append((row, was))

    def _take_inventory(self, node_row: int, inventory: Inventory, sample: NodeSample) -> None:
        """Take over what a node says of its GPUs.

        A GPU that lives on another node meanwhile is moved by being listed, not by being named.
        """
        listed = {*sample.gpu, *sample.parents.values()}
        node = self.nodes[node_row]
        node.expected = inventory.expected_gpus
        node.labels = dict(inventory.labels)
        partitioned = {item.parent for item in inventory.gpus if item.parent}
        for item in inventory.gpus:
            known = self._gpu_rows.get(item.gpu)
            if known is not None and self.gpus[known].node != node.name and item.gpu not in listed:
                continue
            row = self._gpu_row(node, item.gpu, item.parent)
            self._take_item(row, item, mig=bool(item.mig_mode) or item.gpu in partitioned)
        self._layouts.pop(node_row, None)

    def _take_item(self, row: int, item: GpuInventory, *, mig: bool) -> None:
        gpu = self.gpus[row]
        if gpu.pci is not None and item.pci is not None and gpu.pci != item.pci:
            self._begin_anew(row, replace(gpu))
        gpu.pci = item.pci or gpu.pci
        gpu.index = item.index if item.index is not None else gpu.index
        gpu.model = item.model or gpu.model
        self.gpu_table["model"][row] = self._code(gpu.model)
        self.gpu_table["mig_parent"][row] = mig and not item.parent
        for name in FACTS:
            fact = _nvlink_board(item) if name == "nvlink_board" else getattr(item, name)
            self.gpu_table[name][row] = np.nan if fact is None else fact

    def _take_jobs(self, node_row: int, sample: NodeSample) -> None:
        """Give each listed GPU its job; of several jobs on one GPU the first counts."""
        owner: dict[str, JobRef] = {}
        for job in sample.jobs or ():
            for uuid in job.gpus:
                owner.setdefault(uuid, job)
        node = self.nodes[node_row]
        for uuid in sample.gpu:
            row = self._gpu_row(node, uuid, sample.parents.get(uuid))
            mine = owner.get(uuid)
            code = self._code(f"job:{mine.job}" if mine else None)
            if mine is not None:
                self.jobs[code] = (mine.job, mine.project)
            if self.gpu_table["job"][row] != code:
                self.gpu_table["job"][row] = code
                self._layouts.pop(node_row, None)

    def _code(self, word: str | None) -> int:
        if word is None:
            return MISSING_CODE
        code = self._codes.get(word)
        if code is None:
            code = self._codes[word] = self._next_code
            self._next_code += 1
        return code

    def keep_codes(self, used: AbstractSet[int]) -> None:
        """Forget the models and jobs whose codes stand in no row and nowhere in ``used``."""
        kept = used | {int(c) for name in ("model", "job") for c in np.unique(self.gpu_table[name])}
        self._codes = {word: code for word, code in self._codes.items() if code in kept}
        self.jobs = {code: job for code, job in self.jobs.items() if code in kept}

    def find(self, uuid: str | None, node_row: int, pci: str | None) -> int | None:
        """Return the row of a GPU by its UUID, else by its PCI address on a node."""
        if uuid is not None:
            return self._gpu_rows.get(uuid)
        wanted = None if pci is None else canonical_pci(pci)
        if wanted is None:
            return None
        for row in self.nodes[node_row].rows:
            own = self.gpus[row].pci
            if own is not None and canonical_pci(own) == wanted:
                return row
        return None

    def rows_of(self, node_row: int) -> list[int]:
        """Return the rows of all GPUs of a node, partitions among them."""
        name = self.nodes[node_row].name
        return [row for row, gpu in enumerate(self.gpus) if gpu.node == name]

    def partitions_unheard(self, since_ms: int) -> list[int]:
        """Return the rows of partitions that their nodes have not listed for so long.

        A whole GPU that its node no longer lists is missing, and stays known.
        """
        last = self.gpu_table["last_ts"].tolist()
        return [
            row
            for row, gpu in enumerate(self.gpus)
            if gpu.parent is not None
            and self.nodes[self._node_rows[gpu.node]].last_ts - last[row] > since_ms
        ]

    def forget(self, gpu_rows: Sequence[int], node_rows: Sequence[int] = ()) -> None:
        """Let go of GPUs and nodes; their rows are given to those that come next."""
        for row in gpu_rows:
            node_row = self._node_rows[self.gpus[row].node]
            node = self.nodes[node_row]
            node.rows = [other for other in node.rows if other != row]
            node.retired = [other for other in node.retired if other != row]
            self._drop_cached(node_row)
            del self._gpu_rows[self.gpus[row].uuid]
            self.gpus[row] = GpuRow("", "")
            self._free_gpus.append(row)
        for row in node_rows:
            self._drop_cached(row)
            del self._node_rows[self.nodes[row].name]
            self.nodes[row] = NodeRow("")
            self._free_nodes.append(row)
        self.gpu_table.reset(np.array(gpu_rows, dtype=np.int64))
        self.node_table.reset(np.array(node_rows, dtype=np.int64))

    def _drop_cached(self, node_row: int) -> None:
        self._layouts.pop(node_row, None)
        self._inventories.pop(node_row, None)
        self.said.pop(node_row, None)

    def known(self, node_row: int) -> int:
        """Count the GPUs ever listed by a node, partitions left out."""
        return len(self.nodes[node_row].rows)

    def dump(self) -> dict[str, Any]:
        """Return the names and facts as JSON values; arrays are dumped by their tables."""
        return {
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "nodes": [asdict(node) for node in self.nodes],
            "codes": self._codes,
            "jobs": [[code, job, project] for code, (job, project) in self.jobs.items()],
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Take over what :meth:`dump` gave; the tables are loaded by the caller."""
        self.gpus = [_known_fields(GpuRow, gpu) for gpu in saved["gpus"]]
        self.nodes = [_known_fields(NodeRow, node) for node in saved["nodes"]]
        self._codes = dict(saved["codes"])
        self._next_code = 1 + max(self._codes.values(), default=-1)
        self.jobs = {code: (job, project) for code, job, project in saved["jobs"]}
        self._gpu_rows = {gpu.uuid: row for row, gpu in enumerate(self.gpus) if gpu.uuid}
        self._node_rows = {node.name: row for row, node in enumerate(self.nodes) if node.name}
        self._free_gpus = [row for row, gpu in enumerate(self.gpus) if not gpu.uuid]
        self._free_nodes = [row for row, node in enumerate(self.nodes) if not node.name]
        self._inventories.clear()
        self._layouts.clear()
        self.said.clear()
        self.compositions.clear()


def _known_fields(cls: type[_T], saved: dict[str, Any]) -> _T:
    """Make a row from what another version saved: its unknown facts are left out."""
    names = {f.name for f in fields(cls)}  # type: ignore[arg-type]  # both rows are dataclasses
    return cls(**{name: value for name, value in saved.items() if name in names})


def _nvlink_board(item: GpuInventory) -> float | None:
    """Return 1 for a board with NVLink of its own, 0 for another, None for an unknown model."""
    return None if item.model is None else float(bool(_NVLINK_BOARD.search(item.model)))


def sees_gpus(sample: NodeSample) -> bool:
    """Tell whether a message can say anything about absence: a well collector, some GPU."""
    return sample.collector.state == CollectorState.OK and len(sample.gpu) > 0


def _facts(inventory: Inventory) -> tuple[object, ...]:
    """Select what of an inventory changes rows: not the uptime, which always moves."""
    return (inventory.gpus, inventory.expected_gpus, inventory.labels)
