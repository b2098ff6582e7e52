"""``foreshock bench detection``: run, print, write."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import orjson

from foreshock.bench.report import page
from foreshock.bench.run import FULL, QUICK, run_detection
from schemas.errors import ConfigError

__all__ = ["bench_detection"]


def bench_detection(
    *,
    quick: bool,
    seed: int,
    trials: int | None,
    gpu_days: float | None,
    rivals: bool,
    recordings: Path | None,
    jobs: int,
    json_out: Path | None,
    page_out: Path | None,
) -> None:
    """Run the benchmark; the page goes to standard output unless a file is named.

    Raises
    ------
    ConfigError
        If the folder of recordings does not exist.
    """
    if recordings is not None and not (recordings / "timeseries").is_dir():
        raise ConfigError(f"There are no recordings in {recordings}: it has no folder timeseries.")
    size = QUICK if quick else FULL
    if trials is not None:
        size = replace(size, trials=trials, leak_trials=trials)
    if gpu_days is not None:
        size = replace(size, gpu_days=gpu_days)
    if not rivals:
        size = replace(size, tuning_trials=0)
    results = run_detection(size, seed=seed, recordings=recordings, jobs=jobs, say=_say)
    tree = results.as_json()
    if json_out is not None:
        json_out.write_bytes(orjson.dumps(tree, option=orjson.OPT_INDENT_2))
    text = page(tree, _command(quick=quick, seed=seed, trials=trials, gpu_days=gpu_days))
    if page_out is None:
        sys.stdout.write(text)
    else:
        page_out.write_text(text, encoding="utf-8")


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _command(*, quick: bool, seed: int, trials: int | None, gpu_days: float | None) -> str:
    words = ["foreshock bench detection"]
    words += ["--quick"] if quick else []
    words += [f"--seed {seed}"]
    words += [] if trials is None else [f"--trials {trials}"]
    words += [] if gpu_days is None else [f"--gpu-days {gpu_days:g}"]
    return " ".join([*words, "--recordings DIR --page docs/detection-results.md"])
