"""``python -m benchmarks``: samples per second, stage by stage, with the machine.

Prints a Markdown table; ``--write`` puts it into docs/benchmarks.md as it came out.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from benchmarks import stages  # noqa: E402 - after the path
from benchmarks.collector import kept_section  # noqa: E402 - same
from benchmarks.fleet import GPUS, METRICS, messages  # noqa: E402
from schemas.binary import encode_binary  # noqa: E402 - same
from schemas.codec import decode_sample  # noqa: E402 - same

PAGE = ROOT / "docs" / "benchmarks.md"
MIB = 2**20


def machine() -> str:
    """Name the machine and the versions that matter."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    libraries = ", ".join(
        f"{name} {version(name)}" for name in ("numpy", "orjson", "confluent-kafka", "river")
    )
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, {libraries}"


def with_kafka(nodes: int, ticks: int, bootstrap: str | None) -> list[stages.Measured]:
    """Measure against the broker given, else against one started from Maven artifacts."""

    def both(at: str) -> list[stages.Measured]:
        return [stages.kafka_to_alerts(at, nodes, ticks, binary=binary) for binary in (False, True)]

    if bootstrap:
        return both(bootstrap)
    from kafka_broker import BrokerMissingError, start_kafka  # noqa: PLC0415 - optional

    with tempfile.TemporaryDirectory() as folder:
        try:
            broker = start_kafka(Path(folder))
        except BrokerMissingError as exc:
            print(f"No Kafka, so that stage is left out: {exc}", file=sys.stderr)
            return []
        try:
            return both(broker.bootstrap)
        finally:
            broker.stop()


def report(rows: list[stages.Measured], facts: list[str]) -> str:
    """Lay out the results as Markdown."""
    lines = [
        f"Machine: {machine()}",
        "",
        f"{len(METRICS)} metrics, {GPUS} GPUs and 1 tick per message, all stream detectors on.",
        "",
        "| stage | GPU-samples/s | µs per GPU-sample | note |",
        "|---|---:|---:|---|",
    ]
    lines += [
        f"| {row.stage} | {row.rate:,.0f} | {1e6 / row.rate:.2f} | {row.note} |" for row in rows
    ]
    return "\n".join([*lines, "", *facts, ""])


def main() -> None:
    """Run every stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=512)
    parser.add_argument("--ticks", type=int, default=40)
    parser.add_argument("--kafka", default=os.environ.get("FORESHOCK_TEST_KAFKA"))
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    bodies = [body for _, body in messages(64, 40)]
    rows = [
        stages.decode(bodies),
        stages.decode([encode_binary(decode_sample(body)) for body in bodies], binary=True),
        stages.engine(1, args.ticks * 10, batch=1),
        stages.engine(8, args.ticks * 5),
        stages.engine(64, args.ticks),
        stages.engine(args.nodes, args.ticks),
        stages.engine(4096, 4),
        stages.engine(16384, 3),
        stages.records(args.nodes, args.ticks // 2, binary=False),
        stages.records(args.nodes, args.ticks // 2, binary=True),
    ]
    rows += with_kafka(args.nodes, args.ticks * 2, args.kafka)
    rows.append(stages.river_per_sample())
    saved, size = stages.snapshot(10_000)
    facts = [
        f"Snapshot of 10,000 GPUs: {size / MIB:.1f} MiB ({size / 10_000:,.0f} bytes per GPU), "
        f"saved and synced in {saved.seconds * 1000:.0f} ms.",
    ]
    text = report(rows, facts)
    print(text)
    if args.write:
        head = "# Benchmarks\n\nMade by `make bench ARGS=--write`, as it came out.\n\n"
        PAGE.write_text(head + text + kept_section(PAGE))


if __name__ == "__main__":
    main()
