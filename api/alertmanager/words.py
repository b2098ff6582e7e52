"""Silences, status and routes in the words of Alertmanager's API. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from api.alertmanager.board import NOBODY
from api.matchers import Matcher, matches
from api.metrics import COMPATIBLE_WITH
from api.routing import RouteNode
from api.silences import Silence, state_of
from schemas.alert import rfc3339

__all__ = [
    "config_text",
    "silence_is_wanted",
    "silence_json",
    "status_json",
]

Json = dict[str, Any]  # decoded JSON, any value


def silence_json(one: Silence, now_ms: int) -> Json:
    """Return a silence as Alertmanager shows it; one between two of its windows is pending."""
    state = state_of(one, now_ms)
    return {
        "id": one.id,
        "status": {"state": "pending" if state == "waiting" else state},
        "matchers": [
            {
                "name": m.name,
                "value": m.value,
                "isRegex": m.is_regex,
                "isEqual": m.op in {"=", "=~"},
            }
            for m in one.matchers
        ],
        "startsAt": rfc3339(one.starts_ms),
        "endsAt": rfc3339(one.ends_ms),
        "updatedAt": rfc3339(one.updated_ms),
        "createdBy": one.created_by,
        "comment": one.comment,
    }


def silence_is_wanted(one: Silence, wanted: Sequence[Matcher]) -> bool:
    """Tell whether a silence is about what a filter asks for: its matchers are compared by value.

    Examples
    --------
    >>> from api.matchers import parse_matcher
    >>> one = Silence(id="s", version=1, matchers=(parse_matcher('node="n1"'),), comment="c",
    ...               created_by="a", created_ms=0, updated_ms=0, starts_ms=0, ends_ms=1)
    >>> [silence_is_wanted(one, [parse_matcher(text)]) for text in ('node="n1"', 'node="n2"')]
    [True, False]
    """
    return matches(wanted, {m.name: m.value for m in one.matchers})


def status_json(*, config: str, started_ms: int, version: str) -> Json:
    """Return what runs here."""
    return {
        "cluster": {"name": "foreshock", "status": "disabled", "peers": []},
        "versionInfo": {
            "version": COMPATIBLE_WITH,
            "revision": f"foreshock {version}",
            "branch": "foreshock",
            "buildUser": "",
            "buildDate": "",
            "goVersion": "",
        },
        "config": {"original": config},
        "uptime": rfc3339(started_ms),
    }


def config_text(root: RouteNode, names: Sequence[str]) -> str:
    """Return the routes as a configuration that Alertmanager's tools read.

    It shows who is told of what, without addresses and secrets. A node that tells several
    endpoints has a receiver of their joined names; one that tells nobody has ``nobody``.
    """
    receivers = dict.fromkeys([NOBODY, *names])
    lines = ["# The routes of foreshock in the form of Alertmanager: to look at, not to load."]
    lines += ["route:", *_route(root, receivers, "  ", top=True)]
    lines.append("receivers:")
    lines += [f"- name: {json.dumps(name)}" for name in receivers]
    return "\n".join(lines) + "\n"


def _route(
    node: RouteNode, receivers: dict[str, None], indent: str, *, top: bool = False
) -> Iterator[str]:
    name = "+".join(node.endpoints) or NOBODY
    receivers.setdefault(name)
    first = indent if top else f"{indent[:-2]}- "
    yield f"{first}receiver: {json.dumps(name)}"
    if node.match and not top:
        yield f"{indent}matchers:"
        yield from (f"{indent}- {json.dumps(str(one))}" for one in node.match)
    if node.goes_on and not top:
        yield f"{indent}continue: true"
    if node.routes:
        yield f"{indent}routes:"
        for child in node.routes:
            yield from _route(child, receivers, f"{indent}  ")
