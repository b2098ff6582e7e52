"""``python -m benchmarks.collector``: what the collector costs a node of eight GPUs at 1 Hz.

The real command runs over the stand-in library of the tests, child process included, with the
default settings and everything of the catalogue switched on. ``--write`` puts the result into
docs/benchmarks.md as it came out.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.nvml_standin.standin import Standin, build, h100  # noqa: E402 - after the path

PAGE = ROOT / "docs" / "benchmarks.md"
TITLE = "## The collector"
GPUS = 8
WARM_SECONDS = 15.0  # imports, the first reading, the first look at what each GPU offers
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process at one moment: seconds of CPU, resident and proportional bytes, open files."""

    cpu: float
    resident: int
    proportional: int
    files: int

    @classmethod
    def look(cls, pid: int) -> Process:
        """Read it from /proc."""
        proc = Path(f"/proc/{pid}")
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        rollup = (proc / "smaps_rollup").read_text()
        kib = {
            name: int(re.search(rf"^{name}: +(\d+)", rollup, re.MULTILINE)[1])
            for name in ("Rss", "Pss")
        }
        return cls(
            cpu=ticks / os.sysconf("SC_CLK_TCK"),
            resident=kib["Rss"] * 1024,
            proportional=kib["Pss"] * 1024,
            files=len(list((proc / "fd").iterdir())),
        )


def free_port() -> int:
    """Return a port that nobody listens on."""
    import socket  # noqa: PLC0415 - for this alone

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def quantile(metrics: str, name: str, share: float) -> float:
    """Return the upper bound of the bucket that holds a share of a histogram."""
    buckets = [
        (float(edge), float(count))
        for edge, count in re.findall(
            rf'^{name}_bucket{{le="([^"]+)"}} (\S+)', metrics, re.MULTILINE
        )
    ]
    total = buckets[-1][1]
    return next(edge for edge, count in buckets if count >= share * total)


def measure(seconds: float) -> str:
    """Run the command, watch it, and lay out what it cost."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = Standin(build(folder / "library"), folder)
        driver.say(h100(GPUS))
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, "-m", "foreshock", "collect"],
            env={
                **os.environ,
                **driver.environment,
                "FORESHOCK_DATA_DIR": str(folder / "data"),
                "FORESHOCK_COLLECTOR__PORT": str(port),
                "FORESHOCK_COLLECTOR__KERNEL__USE": "off",
                "FORESHOCK_LOG_LEVEL": "error",
            },
            cwd=folder,
        )
        try:
            time.sleep(WARM_SECONDS)
            child = driver.log()[0][1]
            pids = (process.pid, child)
            before, begun = [Process.look(pid) for pid in pids], time.monotonic()
            load = os.getloadavg()[0]
            time.sleep(seconds)
            after, lasted = [Process.look(pid) for pid in pids], time.monotonic() - begun
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                metrics = answer.read().decode()
        finally:
            process.terminate()
            process.wait(20)
    return table(before, after, lasted, metrics, load)


def table(
    before: list[Process], after: list[Process], lasted: float, metrics: str, load: float
) -> str:
    """Lay out the numbers as Markdown."""
    shares = [(b.cpu - a.cpu) / lasted for a, b in zip(before, after, strict=True)]
    rows = [
        ("collector", shares[0], after[0]),
        ("its child, which reads the driver", shares[1], after[1]),
    ]
    delay = quantile(metrics, "foreshock_collector_tick_delay_seconds", 0.99)
    late = re.search(r"^foreshock_collector_ticks_missed_total (\S+)", metrics, re.MULTILINE)
    resident = sum(one.resident for one in after) / MIB
    proportional = sum(one.proportional for one in after) / MIB
    lines = [
        f"{GPUS} GPUs at 1 Hz, the whole catalogue, {lasted:.0f} s after {WARM_SECONDS:.0f} s of "
        f"warm-up, on {platform.machine()} with {os.cpu_count()} cores and a load of {load:.1f} "
        "by other work; the driver is the stand-in of the tests. Goals: 0.5 % of a core, 80 MiB, "
        "20 ms.",
        "",
        "| process | CPU, share of a core | resident | proportional | open files |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {what} | {share:.2%} | {one.resident / MIB:.1f} MiB | "
            f"{one.proportional / MIB:.1f} MiB | {one.files} |"
            for what, share, one in rows
        ),
        f"| both | {sum(shares):.2%} | {resident:.1f} MiB | {proportional:.1f} MiB | |",
        "",
        f"Ticks began at most {delay * 1000:g} ms late in 99 of 100 cases; "
        f"{'0' if late is None else f'{float(late[1]):.0f}'} were missed.",
    ]
    return "\n".join([*lines, ""])


def kept_section(page: Path) -> str:
    """Return the sections of a page behind its first part, which others have measured."""
    text = page.read_text() if page.exists() else ""
    found = text.find("\n## ")
    return text[found:] if found >= 0 else ""


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    text = measure(args.seconds)
    print(text)
    if args.write:
        how = "Made by `python -m benchmarks.collector --write`, as it came out."
        from benchmarks.store import write_section  # noqa: PLC0415 - it loads the api

        write_section(PAGE, TITLE, f"{how}\n\n{text}")


if __name__ == "__main__":
    main()
