"""Whatever is done to a recording, the replay ends, counts the damage and keeps the rest."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.replay.stats import MAX_COMPLAINTS
from schemas.codec import decode_sample, encode
from schemas.errors import SourceError

HEADER = "timestamp, index, uuid, temperature.gpu, power.draw [W], clocks_event_reasons.active"
TICKS, GPUS = 12, 3


def row(tick: int, gpu: int) -> str:
    uuid = f"GPU-0a0a0a0a-0000-4000-8000-00000000000{gpu + 1}"
    time = f"2025/01/06 10:{tick // 60 % 60:02d}:{tick % 60:02d}.{gpu:03d}"
    return f"{time}, {gpu}, {uuid}, {40 + gpu}, {100 + tick % 50}.25 W, 0x0000000000000004"


def recording() -> list[str]:
    return [HEADER, *(row(tick, gpu) for tick in range(TICKS) for gpu in range(GPUS))]


Values = dict[tuple[int, str], tuple[float | None, ...]]


def values_of(source: ReplaySource) -> Values:
    """All values, by second and GPU: the row that names a tick may be one that was cut."""
    found: Values = {}
    while not source.exhausted:
        for reading in source.read(0):
            for position, gpu in enumerate(reading.gpus):
                key = (reading.ts // 1000, gpu)
                values = tuple(column[position] for column in reading.values.values())
                if set(values) == {None}:  # the GPU is there, and its row not in this tick
                    found.setdefault(key, values)
                    continue
                assert set(found.get(key, values[:0])) <= {None}
                found[key] = values
    return found


def replayed(text: str | bytes) -> tuple[Values, ReplaySource]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        source = ReplaySource(ReplaySettings(files=(path,), node="n"))
        return values_of(source), source


def read_of(found: Values) -> Values:
    """Leave out what says only that a GPU is there, its own line being damaged."""
    return {key: values for key, values in found.items() if set(values) != {None}}


WHOLE, _ = replayed("\n".join(recording()) + "\n")
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["cut", "glue", "junk", "header", "repeat", "drop", "swap"]),
        st.integers(min_value=1, max_value=TICKS * GPUS),
        st.integers(min_value=0, max_value=80),
    ),
    max_size=8,
)


def damaged(lines: list[str], changes: list[tuple[str, int, int]]) -> list[str]:
    lines = list(lines)
    for what, place, amount in changes:
        i = min(place, len(lines) - 1)
        if what == "cut":
            lines[i] = lines[i][: min(amount, lines[i].rfind(","))]
        elif what == "glue":  # two writers without a line between them
            lines[i] = lines[i][:amount] + lines[i - 1]
        elif what == "junk":
            lines.insert(i, "\x00\ufffd Failed to initialize NVML: Unknown Error, 7" * (amount % 4))
        elif what == "header":
            lines.insert(i, HEADER)
        elif what == "repeat":
            lines.insert(i, lines[i])
        elif what == "drop" and len(lines) > 2:
            del lines[i]
        elif what == "swap":
            lines[i], lines[-1] = lines[-1], lines[i]
    return lines


@given(CHANGES)
@settings(max_examples=60, deadline=None)
def test_damaged_lines_never_change_what_the_others_say(
    changes: list[tuple[str, int, int]],
) -> None:
    lines = damaged(recording(), changes)
    found, source = replayed("\n".join([HEADER, *lines]) + "\n")
    assert found.keys() <= WHOLE.keys()
    found = read_of(found)
    assert found.items() <= WHOLE.items()
    stats = source.stats
    blank = sum(not line.strip() for line in lines)
    assert stats.rows + stats.damaged + stats.headers + blank == len(lines) + 1
    assert len(found) == stats.rows - stats.duplicates - stats.backwards
    untouched = {what for what, _, _ in changes} <= {"header", "repeat"}
    assert not untouched or found == WHOLE


@given(st.binary(max_size=400), st.integers(min_value=0, max_value=3000))
@settings(max_examples=60, deadline=None)
def test_any_bytes_anywhere_end_in_readings_or_a_sentence(noise: bytes, place: int) -> None:
    body = ("\n".join(recording()) + "\n").encode()
    with contextlib.suppress(SourceError):
        replayed(body[:place] + noise + body[place:])


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_file_cut_anywhere_gives_the_rows_before_the_cut(data: st.DataObject) -> None:
    body = "\n".join(recording()) + "\n"
    place = data.draw(st.integers(min_value=len(HEADER) + 1, max_value=len(body)))
    complete = body[:place].count("\n") - 1
    found, source = replayed(body[:place])
    found = read_of(found)
    assert complete <= len(found) <= complete + 1
    assert source.stats.damaged <= 1


def test_only_the_first_complaints_are_kept_with_their_lines() -> None:
    lines = [HEADER, *(f"{row(0, 0)}, too many" for _ in range(30)), row(1, 1)]
    _, source = replayed("\n".join(lines))
    assert source.stats.damaged == 30
    assert len(source.stats.complaints) == MAX_COMPLAINTS
    assert [complaint.line for complaint in source.stats.complaints][:3] == [2, 3, 4]


def test_a_garbled_uuid_makes_no_new_gpu() -> None:
    found, source = replayed("\n".join([HEADER, row(0, 0), row(1, 0).replace("GPU-", "2025/")]))
    assert len({gpu for _, gpu in found}) == 1
    assert source.stats.damaged == 1


@pytest.mark.parametrize("cell", ["#N/A", "0x1F", "412,5", "4 12", "nan inf", "6_3"])
def test_a_gpu_whose_line_is_damaged_is_there_without_readings(cell: str) -> None:
    lines = recording()
    for tick in range(4, 8):
        at = 1 + tick * GPUS + 1
        lines[at] = lines[at].replace(f"{100 + tick % 50}.25 W", cell)
    found, source = replayed("\n".join(lines))
    assert source.stats.damaged == 4
    assert len(found) == TICKS * GPUS
    unread = found.keys() - read_of(found).keys()
    assert len(unread) == 4
    assert len({gpu for _, gpu in unread}) == 1
    assert read_of(found) == {key: values for key, values in WHOLE.items() if key not in unread}


@pytest.mark.parametrize("cell", ["9" * 23, "9" * 5000, "²"])
def test_an_index_that_no_gpu_has_is_damage(cell: str) -> None:
    lines = recording()
    lines[5] = lines[5].replace(", 1, GPU-", f", {cell}, GPU-")
    found, source = replayed("\n".join(lines))
    assert source.stats.damaged == 1
    assert read_of(found).items() < WHOLE.items()


@pytest.mark.parametrize("cell", ["0x" + "f" * 400, "9" * 400, "9" * 5000])
def test_a_bit_mask_that_no_number_holds_is_damage(cell: str) -> None:
    lines = recording()
    lines[5] = lines[5].replace("0x0000000000000004", cell)
    _, source = replayed("\n".join(lines))
    assert source.stats.damaged == 1


def listed(lines: list[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Time and GPUs of every reading."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        path.write_text("\n".join(lines))
        source = ReplaySource(ReplaySettings(files=(path,), node="n"))
        return [
            (r.ts, r.gpus) for _ in iter(lambda: source.exhausted, True) for r in source.read(0)
        ]


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_rows_missing_at_random_are_gaps_and_no_gpu_is_gone(seed: int) -> None:
    chance = random.Random(seed)
    rows = [row(tick, gpu) for tick in range(200) for gpu in range(GPUS)]
    kept = rows[:GPUS] + [line for line in rows[GPUS:] if chance.random() > 0.3]
    assert all(len(gpus) == GPUS for _, gpus in listed([HEADER, *kept]))


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_rows_stamped_one_by_one_are_all_taken_whatever_their_order(seed: int) -> None:
    chance = random.Random(seed)
    lines = [HEADER]
    for tick in range(60):
        for gpu in range(GPUS):
            moved = 1000 * tick + 500 + chance.randint(-140, 140)
            stamp = f"2025/01/06 10:00:{moved // 1000:02d}.{moved % 1000:03d}"
            lines.append(f"{stamp}, {row(tick, gpu).partition(', ')[2]}")
    found, source = replayed("\n".join(lines))
    assert (source.stats.backwards, source.stats.duplicates) == (0, 0)
    assert len(read_of(found)) == 60 * GPUS


def test_a_gpu_whose_rows_end_for_good_is_gone_after_half_a_minute() -> None:
    rows = [row(tick, gpu) for tick in range(60) for gpu in range(GPUS) if gpu != 2 or tick < 10]
    readings = listed([HEADER, *rows])
    last = max(ts for ts, gpus in readings if len(gpus) == GPUS)
    assert 35_000 <= last - readings[0][0] <= 41_000


@pytest.mark.parametrize("tick", [0, 5, 100])
def test_a_gpu_that_only_a_damaged_cell_names_is_never_gone(tick: int) -> None:
    rows = [row(number, gpu) for number in range(200) for gpu in range(GPUS)]
    ghost = rows[tick * GPUS + 1].replace(", 1, GPU-0a", ", 77, GPU-7a")
    rows[tick * GPUS + 1] = ghost
    readings = listed([HEADER, *rows])
    assert len(readings) == 200
    sizes = {len(gpus) for _, gpus in readings[tick + 1 :]}
    assert len(sizes) == 1, "nobody leaves"
    assert sizes <= {GPUS, GPUS + 1}


@pytest.mark.parametrize("apart_ms", [5, 60])
def test_gpus_whose_rows_have_each_their_own_time_are_all_taken_in(apart_ms: int) -> None:
    lines = ["when,index,temperature_C"]
    for tick in range(60):
        lines += [f"{1_736_154_000_000 + 1000 * tick + apart_ms * n},{n},40" for n in range(16)]
    with TemporaryDirectory() as folder:
        path, mapped = Path(folder) / "log.csv", Path(folder) / "map.toml"
        path.write_text("\n".join(lines))
        mapped.write_text(
            'node = "n"\nround_seconds = 0\n[roles]\ntime = "when"\ngpu_index = "index"\n'
            '[columns]\ntemperature_C = { metric = "temperature_celsius", unit = "C" }\n'
        )
        source = ReplaySource(ReplaySettings(files=(path,), map=mapped))
        found = values_of(source)
    assert source.stats.unconfirmed == 0
    assert len({gpu for _, gpu in read_of(found)}) == 16


def test_a_gpu_that_joins_later_is_taken_in_once_it_has_come_again() -> None:
    rows = [row(tick, gpu) for tick in range(60) for gpu in range(GPUS) if gpu != 2 or tick > 30]
    readings = listed([HEADER, *rows])
    assert [len(gpus) for _, gpus in readings[:33]] == [2] * 33
    assert {len(gpus) for _, gpus in readings[33:]} == {3}


def test_a_gpu_that_is_gone_is_not_kept_by_damage_elsewhere_for_ever() -> None:
    lines = [HEADER]
    for tick in range(900):
        lines += [row(tick, gpu) for gpu in range(GPUS) if gpu != 2 or tick < 100]
        lines.append("# a remark of somebody")
    found, _ = replayed("\n".join(lines))
    last = max(second for second, gpu in found if gpu.endswith("3"))
    first = min(second for second, _ in found)
    assert 695 <= last - first <= 705


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(ticks: int) -> int:
        path = tmp_path / f"{ticks}.csv"
        with path.open("w") as file:
            file.write(HEADER + "\n")
            file.writelines(f"{row(tick, gpu)}\n" for tick in range(ticks) for gpu in range(GPUS))
        source = ReplaySource(ReplaySettings(files=(path,), node="n"))
        tracemalloc.start()
        count = 0
        while not source.exhausted:
            count += len(source.read(0))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count == ticks
        return most

    peak(3000)  # caches of the modules, and the interpreter's own store of 2,000 freed tuples
    assert peak(3000) < peak(300) + 100_000


def test_random_mixtures_of_two_recordings_stay_in_order(tmp_path: Path) -> None:
    """Two loggers that write into one file: every row is taken once, time goes forward."""
    rng = random.Random(7)
    own = iter([row(tick, 0) for tick in range(50)])
    other = iter([row(tick, 1) for tick in range(50)])

    def mixed() -> Iterator[str]:
        for _ in range(50):
            pair = [next(own), next(other)]
            rng.shuffle(pair)
            yield from pair

    found, source = replayed("\n".join([HEADER, *mixed()]) + "\n")
    assert len(found) == 100
    assert source.stats.damaged == source.stats.backwards == 0


@pytest.mark.parametrize("byte", range(0, 256, 17))
def test_a_wrong_byte_in_a_message_costs_that_message_only(tmp_path: Path, byte: int) -> None:
    from collector.replay.samples import iter_samples

    path = tmp_path / "log.csv"
    path.write_text("\n".join(recording()) + "\n")
    samples = list(iter_samples(ReplaySettings(files=(path,), node="n")))
    bodies = [encode(sample) for sample in samples]
    bodies[3] = bodies[3][:9] + bytes([byte]) + bodies[3][9:]
    copy = tmp_path / "log.jsonl"
    copy.write_bytes(b"\n".join(bodies))
    source = ReplaySource(ReplaySettings(files=(copy,)))
    times = [reading.ts for _ in range(TICKS) for reading in source.read(0)]
    expected = [sample.ts[0] for sample in samples]
    assert set(expected) - set(times) <= {expected[3]}
    assert decode_sample(encode(samples[0])) == samples[0]
