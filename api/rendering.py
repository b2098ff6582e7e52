"""Pages from templates: the environment, its filters, and the page of a problem.

No script and no request to anywhere else, so they work on a machine without a network.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from api.readings import evidence_rows, label
from schemas.alert import parse_time

__all__ = ["problem_page", "render", "wants_page"]

_TEMPLATES = Path(__file__).parent / "templates"
_CODE = re.compile(r"``(.+?)``")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    """Return the page templates, with escaping on and unknown names an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ago=_ago,
        clock=_clock,
        evidence=evidence_rows,
        label=label,
        number=_number,
        prose=_prose,
        target=_target,
        words=_words,
    )
    return environment


# Any: what a template shows.
def render(name: str, *, version: str, refresh: int | None = None, **values: Any) -> str:
    """Return the HTML of one template.

    Parameters
    ----------
    name
        File of the template.
    version
        Of foreshock, for the foot of the page; may be empty.
    refresh
        Seconds after which the browser loads it again, or None.
    values
        What the template shows.
    """
    return (
        _environment()
        .get_template(name)
        .render(version=version, refresh=refresh, now_ms=time.time_ns() // 1_000_000, **values)
    )


def problem_page(status: int, detail: str, *, request_id: str, version: str = "") -> bytes:
    """Return the page that a browser gets instead of a problem document."""
    title = HTTPStatus(status).phrase
    html = render(
        "problem.html",
        version=version,
        status=status,
        title=title,
        detail=detail,
        request_id=request_id,
    )
    return html.encode()


def wants_page(accept: str) -> bool:
    """Tell by its Accept header whether a browser asks; programs send ``*/*`` or JSON.

    Examples
    --------
    >>> wants_page("text/html,application/xhtml+xml,*/*;q=0.8"), wants_page("*/*"), wants_page("")
    (True, False, False)
    """
    return "text/html" in accept.lower()


def _prose(text: str) -> Markup:
    """Show what docstrings mark as code as code.

    Examples
    --------
    >>> print(_prose("Pass ``a<b`` on."))
    Pass <code>a&lt;b</code> on.
    """
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def _ago(moment: str | None, now_ms: int) -> str:
    """How long ago, in the largest fitting unit.

    Examples
    --------
    >>> _ago("1970-01-01T00:00:00.000Z", 3 * 3_600_000 + 5 * 60_000)
    '3 h 5 min ago'
    """
    if moment is None:
        return ""
    seconds = (now_ms - parse_time(moment)) // 1000
    if seconds < 0:
        return "just now"
    if seconds < 60:
        return f"{seconds} s ago"
    if seconds < 3600:
        return f"{seconds // 60} min ago"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min ago"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h ago"


def _clock(moment: str | None) -> str:
    """Date and time to the second, UTC.

    Examples
    --------
    >>> _clock("2025-09-24T03:20:03.007Z")
    '2025-09-24 03:20:03 UTC'
    """
    return "" if moment is None else f"{moment[:10]} {moment[11:19]} UTC"


def _number(value: float | None) -> str:
    """Write a reading with four significant digits; a missing one is a dash, never 0.

    Examples
    --------
    >>> [_number(value) for value in (None, 0, 1234567.0, 0.123456)]
    ['–', '0', '1,235,000', '0.1235']
    """
    if value is None:
        return "–"
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def _words(text: str) -> str:
    """Write a fixed word of the contract as words: ``peer_outlier`` is "peer outlier"."""
    return text.replace("_", " ")


def _target(subject: Mapping[str, Any]) -> str:  # decoded JSON of a Subject
    """Say in short what the alert is about.

    Examples
    --------
    >>> _target({"scope": "gpu", "node": "n1", "gpu_index": 0, "gpu_uuid": "GPU-1"})
    'n1 · GPU 0'
    """
    parts = [subject.get("node")]
    index = subject.get("gpu_index")
    if index is not None:
        parts.append(f"GPU {index}")
    elif subject.get("gpu_uuid"):
        parts.append(subject["gpu_uuid"])
    if subject.get("scope") == "job" or not any(parts):
        parts.append(f"job {subject['job']}" if subject.get("job") else None)
    if subject.get("scope") == "rack":
        parts.append(subject.get("rack"))
    return " · ".join(part for part in parts if part) or str(subject.get("scope"))
