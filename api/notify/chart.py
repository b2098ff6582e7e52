"""Draws the evidence of an alert as a small picture: the last minutes of one metric, its bounds.

Only digits and Latin letters are drawn: the font that comes with pillow has no Chinese ones.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from api.readings import label, reading

__all__ = ["evidence_png"]

_WIDTH, _HEIGHT = 560, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 26, 24
_INK, _GRID, _LINE, _BAND = (32, 33, 36), (222, 224, 228), (26, 92, 200), (225, 240, 226)
_MOST_POINTS = 2000

Event = Mapping[str, Any]  # decoded JSON of an AlertEvent


def evidence_png(event: Event) -> bytes | None:
    """Return a PNG of the first series of an alert, or None if there is nothing to draw.

    Parameters
    ----------
    event
        With ``series``; a reading that is missing is a gap in the line, never zero.
    """
    for item in event.get("series") or ():
        points = _points(item)
        if len(points) >= 2:
            return _draw(str(item["metric"]), item["ts"], points, _bounds(event, item["metric"]))
    return None


def _points(item: Mapping[str, Any]) -> list[tuple[int, float]]:  # decoded JSON of a Series
    pairs = zip(item["ts"], item["values"], strict=False)
    found = [(int(ts), float(value)) for ts, value in pairs if value is not None]
    return found[-_MOST_POINTS:]


def _bounds(event: Event, metric: str) -> tuple[float | None, float | None, str]:
    for item in event.get("evidence") or ():
        if item["metric"] == metric:
            return item.get("expected_low"), item.get("expected_high"), str(item["unit"])
    return None, None, ""


def _draw(
    metric: str,
    stamps: Sequence[int],
    points: Sequence[tuple[int, float]],
    bounds: tuple[float | None, float | None, str],
) -> bytes:
    low, high, unit = bounds
    values = [value for _, value in points] + [b for b in (low, high) if b is not None]
    least, most = min(values), max(values)
    pad = (most - least) * 0.08 or max(abs(most) * 0.05, 1.0)
    least, most = least - pad, most + pad
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(ts: int) -> float:
        return _LEFT + (ts - first) / (last - first) * (right - _LEFT)

    def y(value: float) -> float:
        return floor - (value - least) / (most - least) * (floor - _TOP)

    image = Image.new("RGB", (_WIDTH, _HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=11)
    if low is not None or high is not None:
        top = y(high) if high is not None else _TOP
        bottom = y(low) if low is not None else floor
        draw.rectangle((_LEFT, min(top, bottom), right, max(top, bottom)), fill=_BAND)
    for share in (0.0, 0.5, 1.0):
        value = least + pad + share * (most - least - 2 * pad)
        draw.line((_LEFT, y(value), right, y(value)), fill=_GRID)
        text = _latin(reading(value, metric, unit))
        draw.text((_LEFT - 6, y(value)), text, fill=_INK, font=font, anchor="rm")
    for run in _runs(points, stamps):
        line = [(x(ts), y(value)) for ts, value in run]
        draw.line(line if len(line) > 1 else line * 2, fill=_LINE, width=2)
    draw.text((_LEFT, 8), _latin(label(metric)), fill=_INK, font=font)
    seconds = (last - first) / 1000
    said = f"last {seconds / 60:.0f} min" if seconds >= 120 else f"last {seconds:.0f} s"
    draw.text((right, _HEIGHT - 8), said, fill=_INK, font=font, anchor="rs")
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return out.getvalue()


def _runs(
    points: Sequence[tuple[int, float]], stamps: Sequence[int]
) -> list[list[tuple[int, float]]]:
    """Split the line where readings are missing."""
    place = {ts: number for number, ts in enumerate(stamps)}
    runs: list[list[tuple[int, float]]] = []
    for point in points:
        if runs and place[point[0]] == place[runs[-1][-1][0]] + 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _latin(text: str) -> str:
    return text.replace("–", "-").encode("latin-1", "replace").decode("latin-1")
