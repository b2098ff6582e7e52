"""The sparse table behaves as a dense one whose unused rows are fresh."""

from __future__ import annotations

import numpy as np
import pytest

from detector.arrays import StateTable
from detector.episodes import EPISODE_FIELDS
from detector.sparse import SparseTable


def random_values(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Episodes as they are written back: all fresh where the phase is idle."""
    values = {
        name: rng.integers(1, 100, size).astype(spec.dtype) for name, spec in EPISODE_FIELDS.items()
    }
    idle = rng.random(size) < 0.5
    for name, spec in EPISODE_FIELDS.items():
        values[name][idle] = spec.fresh
    return values


@pytest.mark.parametrize("seed", range(5))
def test_it_holds_what_a_dense_table_holds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense, sparse = StateTable(EPISODE_FIELDS), SparseTable(EPISODE_FIELDS, key="phase")
    for rows in (5, 100, 300):
        for table in (dense, sparse):
            table.grow(rows)
        for _ in range(20):
            some = rng.permutation(rows)[: rng.integers(0, rows)]
            values = random_values(rng, len(some))
            for table in (dense, sparse):
                table.scatter(some, values)
            cleared = rng.permutation(rows)[:2]
            dense.reset(cleared)
            sparse.reset(cleared)
            asked = rng.permutation(rows)
            for name, array in dense.gather(asked).items():
                np.testing.assert_array_equal(sparse.gather(asked)[name], array)
                np.testing.assert_array_equal(sparse[name], dense[name])


def test_a_dump_is_loaded_and_goes_on_the_same() -> None:
    table = SparseTable(EPISODE_FIELDS, key="phase")
    table.grow(50)
    table.scatter(np.array([30, 2, 7]), random_values(np.random.default_rng(1), 3))
    copy = SparseTable(EPISODE_FIELDS, key="phase")
    assert copy.load(table.dump(), 50) == []
    for name in EPISODE_FIELDS:
        np.testing.assert_array_equal(copy[name], table[name])


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: {k: v for k, v in saved.items() if k != "phase"},
        lambda saved: {k: v for k, v in saved.items() if k != "rows"},
        lambda saved: saved | {"held": saved["held"].astype("f8")},
        lambda saved: saved | {"rows": saved["rows"] + 100},
        lambda saved: saved | {"rows": saved["rows"][::-1]},
        lambda saved: saved | {"seq": saved["seq"][:1]},
    ],
    ids=["key_missing", "rows_missing", "dtype", "rows_outside", "order", "length"],
)
def test_a_dump_that_does_not_fit_is_dropped_whole(damage: object) -> None:
    table = SparseTable(EPISODE_FIELDS, key="phase")
    table.grow(10)
    full = {name: np.ones(2, dtype=spec.dtype) for name, spec in EPISODE_FIELDS.items()}
    table.scatter(np.array([3, 5]), full)
    fresh = SparseTable(EPISODE_FIELDS, key="phase")
    assert fresh.load(damage(table.dump()), 10) == ["rows", *EPISODE_FIELDS]  # type: ignore[operator]  # the parameters are functions
    assert not fresh["phase"].any()


def test_an_unused_row_costs_one_byte() -> None:
    table = SparseTable(EPISODE_FIELDS, key="phase")
    table.grow(1000)
    assert table.bytes_per_row() == 1


def test_a_field_that_an_older_version_did_not_save_begins_fresh_and_is_named() -> None:
    table = SparseTable(EPISODE_FIELDS, key="phase")
    table.grow(10)
    full = {name: np.ones(2, dtype=spec.dtype) for name, spec in EPISODE_FIELDS.items()}
    table.scatter(np.array([3, 5]), full)
    saved = {name: array for name, array in table.dump().items() if name != "flaps"}
    newer = SparseTable(EPISODE_FIELDS, key="phase")
    assert newer.load(saved, 10) == ["flaps"]
    assert newer["phase"].tolist() == table["phase"].tolist()
    assert newer["onset"].tolist() == table["onset"].tolist()
    assert newer["flaps"].tolist() == [0] * 10
