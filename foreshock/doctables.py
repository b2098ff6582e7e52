"""Tables of the documentation that come from the code: detectors and metrics."""

from __future__ import annotations

import dataclasses
import re

from detector.base import Detector
from detector.cohort.listing import COHORT_DETECTORS
from detector.registry import available, build
from schemas.metrics import CATALOGUE

__all__ = ["detector_sections", "metric_table"]


def metric_table() -> str:
    """Return the metric catalogue as a Markdown table."""
    rows = [
        f"| `{m.name}` | {m.kind} | {_number(m.low)} to {_number(m.high)} | "
        f"{m.label_en} | {m.label_zh} | {m.source} |"
        for m in CATALOGUE
    ]
    head = "| metric | kind | plausible | label | 中文 | source |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _number(value: float) -> str:
    return f"{value:g}"


def detector_sections() -> str:
    """Return a section per detector: its question, its kinds and its parameters."""
    made = {detector.name: detector for detector in build()}
    sections = [_section(made[name]) for name in available()]
    sections += [_section(cls()) for cls in COHORT_DETECTORS]
    return "\n".join(sections)


def _section(detector: Detector) -> str:
    kind_rows = [
        f"| `{detector.family}/{spec.kind}` | {spec.scope or detector.scope} | "
        f"{spec.enter_seconds:g} s, {spec.enter_samples} samples | {spec.exit_seconds:g} s |"
        for spec in detector.kinds
    ]
    needs = ", ".join(f"`{name}`" for name in detector.needs) or "nothing but the list of GPUs"
    helps = ", ".join(f"`{name}`" for name in detector.helps)
    lines = [
        f"### {detector.name}",
        "",
        _first_lines(type(detector)),
        "",
        f"Needs {needs}." + (f" Also uses {helps}." if helps else ""),
        "",
        "| alert | scope | must hold | must have ended |",
        "|---|---|---|---|",
        *kind_rows,
        "",
        "| parameter | default |",
        "|---|---|",
        *[
            f"| `{field.name}` | {getattr(detector, field.name):g} |"
            for field in dataclasses.fields(type(detector))  # type: ignore[arg-type]  # all are
        ],
        "",
    ]
    return "\n".join(lines)


def _first_lines(cls: type) -> str:
    """Cut the first sentence and the notes out of a docstring: what is computed, and how."""
    text = cls.__doc__ or ""
    summary = text.strip().split("\n\n")[0]
    notes = re.search(
        r"Notes\n\s+-+\n(.*?)(?:\n\s*\n\s+(?:References|Examples)\n|\Z)", text, re.DOTALL
    )
    body = summary + ("\n\n" + notes.group(1) if notes else "")
    plain = re.sub(r"``", "`", re.sub(r":(?:mod|class):`([^`]*)`", r"`\1`", body))
    return "\n".join(line.strip() for line in plain.splitlines())
