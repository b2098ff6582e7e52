"""One run of the benchmark: make the worlds, ask everybody, add up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from foreshock.bench.compare import Tuned, all_rivals, measure, tune
from foreshock.bench.ranges import HELD_OUT, TUNE, Side
from foreshock.bench.recordings import replayed
from foreshock.bench.results import Results
from foreshock.bench.scoring import Score, judge
from foreshock.bench.subject import Foreshock
from foreshock.bench.suites import Case, fault_suite, memory_suite, soak

__all__ = ["FULL", "QUICK", "Size", "run_detection"]

MAPS = Path(__file__).resolve().parents[2] / "maps"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured.

    Parameters
    ----------
    trials
        Per class and magnitude on the side that is reported.
    tuning_trials
        The same on the tuning side; 0 leaves the rivals out.
    leak_trials
        Per rate and kind of memory.
    gpu_days
        Of the soak.
    interval
        Sampling interval of the soak, s.
    names
        Fault classes; all if empty.
    """

    trials: int = 10
    tuning_trials: int = 3
    leak_trials: int = 10
    gpu_days: float = 300.0
    interval: float = 30.0
    names: tuple[str, ...] = ()


FULL = Size()
QUICK = Size(
    trials=1, tuning_trials=1, leak_trials=1, gpu_days=24.0, interval=60.0,
)  # fmt: skip


def run_detection(
    size: Size,
    *,
    seed: int,
    side: Side = HELD_OUT,
    recordings: Path | None = None,
    say: Say = lambda _: None,
) -> Results:
    """Measure foreshock and the rivals.

    Parameters
    ----------
    size
        How much.
    seed
        Of all random numbers; a side and a seed give the same worlds everywhere.
    side
        The side that is reported; rivals are tuned on the other one.
    recordings
        Folder of real recordings, or None.
    say
        Told of the progress, a sentence at a time.
    """
    begin = time.perf_counter()
    results = Results(seed=seed, trials=size.trials, gpu_days=size.gpu_days, side=side.name)
    if size.tuning_trials:
        say("Tuning the rivals.")
        results.rivals, results.evaluations = tune(all_rivals(), lambda: _tuning(size, seed))
    for case in _reported(size, side, seed):
        _measure(results, case)
        say(_progress(results, case))
    if recordings is not None:
        results.recordings = list(replayed(recordings, MAPS))
    results.seconds = time.perf_counter() - begin
    return results


def _tuning(size: Size, seed: int) -> Iterable[Case]:
    trials = size.tuning_trials
    return chain(fault_suite(TUNE, seed, trials, size.names), memory_suite(TUNE, seed, trials))


def _reported(size: Size, side: Side, seed: int) -> Iterator[Case]:
    yield from fault_suite(side, seed, size.trials, size.names)
    if size.leak_trials:
        yield from memory_suite(side, seed, size.leak_trials)
    if size.gpu_days:
        yield from soak(side, seed, size.gpu_days, size.interval)


def _measure(results: Results, case: Case) -> None:
    subject = Foreshock()
    part = judge(subject.alarms(case.world), case.truths, case.world.gpu_days)
    part.seconds, part.samples = subject.seconds, subject.samples
    results.scores.setdefault(case.suite, Score()).add(part)
    rivals: Sequence[Tuned] = results.rivals
    measure(rivals, case)


def _progress(results: Results, case: Case) -> str:
    score = results.scores[case.suite]
    hits = sum(one.credit for one in score.found)
    return (
        f"{case.suite}: {score.gpu_days:,.1f} GPU-days, {hits:g} of {len(score.found)} faults, "
        f"{len(score.false_alarms)} false alarms, "
        f"{1e6 * score.seconds / max(score.samples, 1):.1f} µs per sample"
    )
