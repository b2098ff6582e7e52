"""One run of the benchmark: make the worlds, ask everybody, add up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from foreshock.bench.compare import Tuned, all_rivals, measure, try_settings, tune
from foreshock.bench.ranges import HELD_OUT, TUNE, Side
from foreshock.bench.recordings import recorded, replay
from foreshock.bench.results import Results
from foreshock.bench.scoring import Score
from foreshock.bench.subject import Foreshock
from foreshock.bench.suites import Make, fault_suite, memory_suite, soak

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
    memory_interval, interval
        Sampling intervals of the memory suite and of the soak, s.
    names, rates
        Fault classes, and leaks in GiB/h; all if empty.
    """

    trials: int = 5
    tuning_trials: int = 1
    leak_trials: int = 6
    gpu_days: float = 300.0
    memory_interval: float = 30.0
    interval: float = 60.0
    names: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()


FULL = Size()
QUICK = Size(
    trials=1, tuning_trials=1, leak_trials=2, gpu_days=48.0, memory_interval=60.0,
)  # fmt: skip


def run_detection(
    size: Size,
    *,
    seed: int,
    side: Side = HELD_OUT,
    recordings: Path | None = None,
    jobs: int = 1,
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
    jobs
        Processes that share the work; the results do not depend on it.
    say
        Told of the progress, a sentence at a time.
    """
    begin = time.perf_counter()
    results = Results(seed=seed, trials=size.trials, gpu_days=size.gpu_days, side=side.name)
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        spread = map if pool is None else pool.map
        if size.tuning_trials:
            say("Tuning the rivals.")
            parts = spread(_try, _tuning(size, seed))
            results.rivals, results.evaluations = tune(all_rivals(), parts)
        if recordings is not None:
            paths = recorded(recordings)
            results.recordings = list(spread(partial(replay, maps=MAPS), paths))
            say(f"Replayed {len(paths)} recordings.")
        work = partial(_measured, tuned=results.rivals)
        for done in spread(work, _reported(size, side, seed)):
            _take(results, done)
            say(_progress(results, done.suite))
    results.seconds = time.perf_counter() - begin
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """One world, measured: foreshock, and default and tuned setting of each rival."""

    suite: str
    own: Score
    rivals: list[tuple[Score, Score]]


def _tuning(size: Size, seed: int) -> list[Make]:
    trials = size.tuning_trials
    return [
        *fault_suite(TUNE, seed, trials, size.names),
        *memory_suite(TUNE, seed, trials, size.memory_interval),
    ]


def _reported(size: Size, side: Side, seed: int) -> list[Make]:
    made = fault_suite(side, seed, size.trials, size.names) if size.trials else []
    if size.leak_trials:
        made += memory_suite(side, seed, size.leak_trials, size.memory_interval, size.rates)
    if size.gpu_days:
        made += soak(side, seed, size.gpu_days, size.interval)
    return made


def _try(make: Make) -> list[list[Score]]:
    return try_settings(all_rivals(), make())


def _measured(make: Make, tuned: Sequence[Tuned]) -> _Done:
    case = make()
    subject = Foreshock()
    own = case.judged(subject.alarms(case.world))
    own.seconds, own.samples = subject.seconds, subject.samples
    return _Done(suite=case.suite, own=own, rivals=measure(tuned, case))


def _take(results: Results, done: _Done) -> None:
    results.scores.setdefault(done.suite, Score()).add(done.own)
    for one, (default, chosen) in zip(results.rivals, done.rivals, strict=True):
        one.default.setdefault(done.suite, Score()).add(default)
        one.chosen.setdefault(done.suite, Score()).add(chosen)


def _progress(results: Results, suite: str) -> str:
    score = results.scores[suite]
    hits = sum(one.credit for one in score.found)
    return (
        f"{suite}: {score.gpu_days:,.1f} GPU-days, {hits:g} of {len(score.found)} faults, "
        f"{len(score.false_alarms)} false alarms, "
        f"{1e6 * score.seconds / max(score.samples, 1):.1f} µs per sample"
    )
