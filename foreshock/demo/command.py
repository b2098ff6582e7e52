"""Runs the demo from the first sample to the summary."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from collector.simulated.faults import default_schedule
from collector.simulated.fleet import SimulatedFleet
from collector.simulated.identity import gpu_uuid
from collector.simulated.settings import SimulatedSettings
from foreshock.demo.clock import ScaledClock
from foreshock.demo.progress import Progress
from foreshock.demo.receiver import WebhookReceiver
from foreshock.demo.stack import CountedSource, demo_settings, opened_stack, require_free
from foreshock.demo.view import summary
from foreshock.demo.watch import DemoWatch
from foreshock.run import Outcome, run_services

__all__ = ["run_demo"]

_PLAIN_WIDTH = 120


def run_demo(
    *,
    seconds: float | None,
    port: int,
    seed: int,
    data_dir: Path | None,
    speed: float = 10.0,
    console: Console | None = None,
) -> int:
    """Run two simulated nodes of eight GPUs through their schedule of faults.

    Parameters
    ----------
    seconds
        Wall seconds after which it ends with a summary; None runs until a signal.
    port
        Of the API on 127.0.0.1.
    seed
        Of the fleet; it also moves the faults to other GPUs.
    data_dir
        Where to keep the data; None uses a temporary folder and deletes it afterwards.
    speed
        Simulated seconds per wall second until simulated time has caught up with now.
    console
        Where to show it; standard output by default.

    Raises
    ------
    ConfigError
        If the port cannot be had.
    DataDirError
        If the data directory cannot be used, or holds an earlier run.

    Returns
    -------
    int
        0 if every service ended cleanly and, with ``seconds``, no alert was wrong and no fault
        missed whose deadline has passed; else 1.
    """
    out = console or _console()
    fleet = SimulatedFleet(SimulatedSettings(seed=seed), faults=default_schedule(seed))
    source = CountedSource(fleet)
    clock = ScaledClock(speed)
    require_free(port)
    out.print("Starting the services for 2 simulated nodes of 8 GPUs; a first alert is due soon.")
    with _folder(data_dir) as folder, WebhookReceiver() as receiver:
        settings = demo_settings(data_dir=folder, port=port, receiver=receiver)
        with opened_stack(settings, source, clock) as stack:
            clock.start()
            fleet.begin(clock.start_ms)
            progress = Progress(
                truths=fleet.truths(clock.start_ms), gpu_index=_indices(fleet.settings)
            )
            watch = DemoWatch(
                stack.bus,
                prefix=settings.bus.prefix,
                receiver=receiver,
                source=source,
                progress=progress,
                clock=clock,
                console=out,
                url=stack.url,
                seconds=seconds,
            )
            outcome = run_services([*stack.services, watch], threading.Event())
            ended_ms, speed_then = clock.unix_ms(), clock.speed
    return _finish(out, progress, outcome, ended_ms, speed_then, judged=seconds is not None)


def _finish(
    out: Console,
    progress: Progress,
    outcome: Outcome,
    ended_ms: int,
    speed: float,
    *,
    judged: bool,
) -> int:
    score = progress.scored(ended_ms, speed)
    for problem in outcome.problems:
        out.print(problem, style="bold red", markup=False, highlight=False)
    if progress.events or not outcome.problems:
        summary(progress, score, out)
    failed = judged and not score.clean
    return 1 if failed else outcome.exit_code


def _console() -> Console:
    terminal = Console()
    # A pipe or a file has no width of its own; the default of 80 would cut the summary.
    return terminal if terminal.is_terminal else Console(width=_PLAIN_WIDTH)


@contextmanager
def _folder(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is not None:
        yield data_dir
        return
    with tempfile.TemporaryDirectory(prefix="foreshock-demo-") as name:
        yield Path(name)


def _indices(settings: SimulatedSettings) -> dict[str, int]:
    return {
        gpu_uuid(settings.seed, node, gpu): gpu
        for node in range(settings.nodes)
        for gpu in range(settings.gpus)
    }
