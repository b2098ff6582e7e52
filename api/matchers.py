"""Matchers in the manner of Prometheus: ``node=~"gpu-1.*"``, compared with an alert's words.

Regular expressions are RE2: linear in time whatever the pattern, anchored at both ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # the package carries no types

__all__ = [
    "EXTERNAL",
    "LABELS",
    "MAX_MATCHERS",
    "Matcher",
    "MatcherError",
    "check_matchers",
    "gpu_condition",
    "labels_of",
    "matches",
    "parse_matcher",
]

MAX_MATCHERS = 20
_MAX_VALUE = 500
_MAX_NAME = 128
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_TEXT = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*(.*?)\s*", re.ASCII | re.DOTALL)
#: Longer numbers are no index of a GPU on a node.
_INDEX_DIGITS = 4
_OPS = ("=", "!=", "=~", "!~")
#: Words of every alert; labels of the node's settings are added under their own names.
LABELS = (
    "alertname",
    "family",
    "kind",
    "severity",
    "scope",
    "node",
    "gpu",
    "gpu_index",
    "pci",
    "model",
    "job",
    "project",
    "rack",
    "cluster",
    "pipeline",
    "detector",
    "action",
)
#: Kind of alerts that other tools push in; they keep the name that they came with.
EXTERNAL = "external"


class MatcherError(ValueError):
    """A matcher cannot be used; the text says why and never repeats a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """One condition on one word.

    Parameters
    ----------
    name
        Name of the word; one that an alert lacks counts as empty.
    op
        ``=``, ``!=``, ``=~`` or ``!~``.
    value
        Text, or RE2 expression that must match the whole word.

    Raises
    ------
    MatcherError
        If name, operator or expression cannot be used.

    Examples
    --------
    >>> str(parse_matcher('node =~ "gpu-1.*"'))
    'node=~"gpu-1.*"'
    >>> parse_matcher('node=~"gpu-1.*"').holds({"node": "gpu-17"})
    True
    """

    name: str
    op: str
    value: str

    def __post_init__(self) -> None:
        if len(self.name) > _MAX_NAME or not _NAME.fullmatch(self.name):
            raise MatcherError("the name of a matcher has letters, digits and _, at most 128")
        if self.op not in _OPS:
            raise MatcherError("the operator of a matcher is one of =, !=, =~, !~")
        if len(self.value) > _MAX_VALUE:
            raise MatcherError(f"the value of a matcher has at most {_MAX_VALUE} characters")
        if self.is_regex:
            _compiled(self.value)

    @property
    def is_regex(self) -> bool:
        """Whether the value is an expression."""
        return self.op in {"=~", "!~"}

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an alert with these words satisfies the condition."""
        word = labels.get(self.name, "")
        if self.is_regex:
            found = _compiled(self.value).fullmatch(word) is not None
        else:
            found = word == self.value
        return found if self.op in {"=", "=~"} else not found

    @property
    def takes_all(self) -> bool:
        """Whether it holds for an alert that lacks the word: it narrows nothing by itself."""
        return self.holds({})

    def __str__(self) -> str:
        quoted = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.name}{self.op}"{quoted}"'


def parse_matcher(text: str) -> Matcher:
    """Read ``name op value``, the value with or without quotes.

    Raises
    ------
    MatcherError
        If it cannot be read.
    """
    found = _TEXT.fullmatch(text) if len(text) <= _MAX_NAME + 2 * _MAX_VALUE else None
    if found is None:
        raise MatcherError('a matcher is written name="value", with =, !=, =~ or !~')
    name, op, value = found.groups()
    if value.startswith('"'):
        if len(value) < 2 or not value.endswith('"'):
            raise MatcherError("a quoted value needs its closing quote")
        value = re.sub(r"\\(.)", _unescaped, value[1:-1], flags=re.DOTALL)
    return Matcher(name=name, op=op, value=value)


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def matches(matchers: Iterable[Matcher], labels: Mapping[str, str]) -> bool:
    """Tell whether every matcher holds."""
    return all(one.holds(labels) for one in matchers)


def check_matchers(matchers: Sequence[Matcher]) -> None:
    """Refuse what would match everything.

    Raises
    ------
    MatcherError
        If there are none, too many, or none that narrows.
    """
    if not 1 <= len(matchers) <= MAX_MATCHERS:
        raise MatcherError(f"1 to {MAX_MATCHERS} matchers are needed")
    if all(one.takes_all for one in matchers):
        raise MatcherError("at least one matcher must not match the empty word")


def labels_of(payload: Mapping[str, Any]) -> dict[str, str]:  # decoded JSON of an AlertEvent
    """Return the words of an alert that matchers compare; absent ones are left out."""
    subject = payload.get("subject") or {}
    own = payload.get("labels") or {}
    found = {str(name): str(value) for name, value in own.items() if value is not None}
    kind, family = str(payload["kind"]), str(payload["family"])
    pushed = kind == EXTERNAL
    words = {
        "alertname": found.get("alertname") if pushed else f"{family}/{kind}",
        "family": family,
        "kind": kind,
        "severity": payload["severity"],
        "action": payload.get("action"),
        "detector": (payload.get("detector") or {}).get("name"),
        "gpu": subject.get("gpu_uuid"),
        **{
            name: subject.get(name)
            for name in ("scope", "node", "gpu_index", "pci", "model", "job", "project", "rack")
        },
        "pipeline": None if pushed else subject.get("pipeline"),
    }
    return found | {name: str(value) for name, value in words.items() if value is not None}


def gpu_condition(gpu: str | None) -> tuple[str | None, tuple[Matcher, ...]]:
    """Split a filter by GPU into a UUID or a matcher of the index on its node.

    Examples
    --------
    >>> gpu_condition("GPU-7"), str(gpu_condition("3")[1][0])
    (('GPU-7', ()), 'gpu_index="3"')
    """
    if gpu is None or not (gpu.isascii() and gpu.isdecimal() and len(gpu) <= _INDEX_DIGITS):
        return gpu, ()
    return None, (Matcher(name="gpu_index", op="=", value=str(int(gpu))),)


# Any: re2 carries no types.
@lru_cache(maxsize=1000)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        return re2.compile(pattern, options)
    except re2.error:
        raise MatcherError("the expression of a matcher is no RE2 expression") from None
