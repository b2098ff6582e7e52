"""The routing tree: which endpoint is told of which alert, how soon and how often.

A node has matchers, endpoints, timings and children. An alert enters at the root; the first child
that matches takes it, further ones too if that child says ``continue``. A node whose children
took the alert tells nobody itself. An endpoint's own ``severity_min`` holds in any case.

Without a tree, every endpoint is told of what is grave enough for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa

from api.grouping import GROUP_WORDS, group_key_of
from api.matchers import Matcher, MatcherError, matches, parse_matcher
from api.notices import Receiver, Route
from api.tables import routing

__all__ = [
    "RouteNode",
    "Routing",
    "RoutingError",
    "Step",
    "names_in",
    "parse_tree",
    "read_tree",
    "tree_json",
    "walk",
    "write_tree",
]

_MAX_NODES = 200
_MAX_DEPTH = 10
_MAX_DELAY_SECONDS = 86_400
_CRITICAL = 3
_KNOWN = frozenset(
    {
        "name",
        "match",
        "endpoints",
        "continue",
        "group_by",
        "first_notice_delay_seconds",
        "update_min_interval_seconds",
        "remind_every_seconds",
        "routes",
    }
)


class RoutingError(ValueError):
    """A tree cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteNode:
    """One node of the tree.

    Parameters
    ----------
    name
        For ``explain`` and people.
    match
        All must hold; an empty list takes everything.
    endpoints
        Who is told.
    goes_on
        Whether the next sibling is asked as well: ``continue`` in JSON.
    group_by
        Word by which notices are kept in order: alert, node, job, rack or cause.
    first_notice_delay_seconds
        Wait before the first notice; never for a critical alert.
    update_min_interval_seconds
        Least time between two notices of one alert; an end never waits.
    remind_every_seconds
        How often an open alert that nobody acknowledged is repeated; 0 for never.
    """

    name: str = "root"
    match: tuple[Matcher, ...] = ()
    endpoints: tuple[str, ...] = ()
    goes_on: bool = False
    group_by: str = "alert"
    first_notice_delay_seconds: int = 0
    update_min_interval_seconds: int = 0
    remind_every_seconds: int = 0
    routes: tuple[RouteNode, ...] = ()

    def taken_by(self, labels: Mapping[str, str]) -> list[RouteNode]:
        """Return the nodes that tell somebody of an alert with these words."""
        if not matches(self.match, labels):
            return []
        found: list[RouteNode] = []
        for child in self.routes:
            taken = child.taken_by(labels)
            found += taken
            if taken and not child.goes_on:
                break
        return found or [self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node that was asked, for ``explain``: whether it matched, and which matcher did not."""

    path: str
    matched: bool
    failed: str | None = None


def walk(node: RouteNode, labels: Mapping[str, str], path: str = "") -> Iterator[Step]:
    """Give every node that is asked about an alert, in order."""
    here = f"{path}/{node.name}"
    failed = next((str(one) for one in node.match if not one.holds(labels)), None)
    yield Step(path=here, matched=failed is None, failed=failed)
    if failed is not None:
        return
    for child in node.routes:
        yield from walk(child, labels, here)
        if child.taken_by(labels) and not child.goes_on:
            return


def parse_tree(tree: Mapping[str, Any], endpoints: frozenset[str]) -> RouteNode:
    """Build a tree from decoded JSON.

    Parameters
    ----------
    tree
        As ``PUT /v1/routes`` takes it.
    endpoints
        Names that exist.

    Raises
    ------
    RoutingError
        If it names what does not exist, or is too large.
    """
    count = [0]

    def node(part: object, path: str, depth: int) -> RouteNode:
        count[0] += 1
        if count[0] > _MAX_NODES or depth > _MAX_DEPTH:
            raise RoutingError(f"a tree has at most {_MAX_NODES} nodes, {_MAX_DEPTH} deep")
        if not isinstance(part, dict):
            raise RoutingError(f"{path} must be an object")
        unknown = sorted(set(part) - _KNOWN)
        if unknown:
            raise RoutingError(f"{path} has a field that routes do not have")
        routes = _list(part, "routes", path)
        return RouteNode(
            name=_text(part, "name", path) or ("root" if depth == 0 else f"route-{count[0]}"),
            match=tuple(_matcher(one, f"{path}/match") for one in _list(part, "match", path)),
            endpoints=_endpoints(part, path, endpoints),
            goes_on=_flag(part, "continue", path),
            group_by=_group_by(part, path),
            first_notice_delay_seconds=_seconds(part, "first_notice_delay_seconds", path),
            update_min_interval_seconds=_seconds(part, "update_min_interval_seconds", path),
            remind_every_seconds=_seconds(part, "remind_every_seconds", path),
            routes=tuple(
                node(one, f"{path}/routes/{i}", depth + 1) for i, one in enumerate(routes)
            ),
        )

    return node(tree, "", 0)


def _list(part: Mapping[str, Any], name: str, path: str) -> list[Any]:
    value = part.get(name, [])
    if not isinstance(value, list) or len(value) > _MAX_NODES:
        raise RoutingError(f"{path}/{name} must be a list")
    return value


def _text(part: Mapping[str, Any], name: str, path: str) -> str:
    value = part.get(name, "")
    if not isinstance(value, str) or len(value) > 64 or "/" in value:
        raise RoutingError(f"{path}/{name} must be text of at most 64 characters, without /")
    return value


def _flag(part: Mapping[str, Any], name: str, path: str) -> bool:
    value = part.get(name, False)
    if not isinstance(value, bool):
        raise RoutingError(f"{path}/{name} must be true or false")
    return value


def _seconds(part: Mapping[str, Any], name: str, path: str) -> int:
    value = part.get(name, 0)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 0 <= value <= _MAX_DELAY_SECONDS:
        raise RoutingError(f"{path}/{name} must be 0 to {_MAX_DELAY_SECONDS} whole seconds")
    return int(value)


def _group_by(part: Mapping[str, Any], path: str) -> str:
    value = part.get("group_by", "alert")
    if value not in GROUP_WORDS:
        raise RoutingError(f"{path}/group_by must be one of {', '.join(GROUP_WORDS)}")
    return str(value)


def _matcher(value: object, path: str) -> Matcher:
    try:
        if isinstance(value, str):
            return parse_matcher(value)
    except MatcherError as exc:
        raise RoutingError(f"{path}: {exc}") from exc
    raise RoutingError(f'{path} holds texts such as node=~"gpu-1.*"')


def _endpoints(part: Mapping[str, Any], path: str, known: frozenset[str]) -> tuple[str, ...]:
    names = _list(part, "endpoints", path)
    if not all(isinstance(name, str) and name in known for name in names):
        raise RoutingError(f"{path}/endpoints names an endpoint that does not exist")
    return tuple(dict.fromkeys(names))


def tree_json(node: RouteNode) -> dict[str, Any]:
    """Return a tree as JSON, as it can be put again."""
    return {
        "name": node.name,
        "match": [str(one) for one in node.match],
        "endpoints": list(node.endpoints),
        "continue": node.goes_on,
        "group_by": node.group_by,
        "first_notice_delay_seconds": node.first_notice_delay_seconds,
        "update_min_interval_seconds": node.update_min_interval_seconds,
        "remind_every_seconds": node.remind_every_seconds,
        "routes": [tree_json(child) for child in node.routes],
    }


def read_tree(connection: sa.Connection) -> tuple[int, Mapping[str, Any] | None]:
    """Return version and tree as stored; (0, None) if there is none."""
    row = connection.execute(sa.select(routing.c.version, routing.c.tree)).one_or_none()
    return (0, None) if row is None else (row.version, orjson.loads(row.tree))


def write_tree(
    connection: sa.Connection, node: RouteNode, *, version: int, actor: str, now_ms: int
) -> None:
    """Store a tree as the next version."""
    values = {
        "version": version,
        "tree": orjson.dumps(tree_json(node)).decode(),
        "updated_by": actor,
        "updated_ms": now_ms,
    }
    if version == 1:
        connection.execute(sa.insert(routing).values(id=1, **values))
    else:
        connection.execute(sa.update(routing).values(values))


@dataclass(slots=True)
class Routing:
    """Who is told: the tree over the endpoints that exist now. Read and replaced as a whole.

    Parameters
    ----------
    routes
        The endpoints that take notifications, with their least severities.
    tree
        The tree, or None: everybody by severity.
    """

    routes: Sequence[Route] = ()
    tree: RouteNode | None = None
    version: int = 0
    _severities: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._severities = {r.endpoint: r.severity_min.rank for r in self.routes}

    def replace_routes(self, routes: Sequence[Route]) -> None:
        """Take other endpoints from now on."""
        self.routes = routes
        self._severities = {r.endpoint: r.severity_min.rank for r in routes}

    def names(self) -> frozenset[str]:
        """Return every endpoint that takes notifications."""
        return frozenset(self._severities)

    def taken_by(self, labels: Mapping[str, str]) -> list[RouteNode]:
        """Return the nodes that tell somebody."""
        everyone = RouteNode(name="everyone", endpoints=tuple(sorted(self._severities)))
        return (self.tree or everyone).taken_by(labels)

    def of(self, labels: Mapping[str, str], rank: int) -> list[Receiver]:
        """Return who is told of an alert with these words and this severity."""
        found: dict[str, Receiver] = {}
        for node in self.taken_by(labels):
            delay_ms = 0 if rank >= _CRITICAL else node.first_notice_delay_seconds * 1000
            for name in node.endpoints:
                if rank >= self._severities.get(name, _CRITICAL + 1):
                    receiver = Receiver(
                        endpoint=name,
                        first_delay_ms=delay_ms,
                        group_key=group_key_of(node.group_by, labels),
                    )
                    found.setdefault(name, receiver)
        return list(found.values())

    def interval_ms(self, labels: Mapping[str, str], endpoint: str) -> int:
        """Return the least milliseconds between two notices of such an alert to an endpoint."""
        taken = [node for node in self.taken_by(labels) if endpoint in node.endpoints]
        return max((node.update_min_interval_seconds * 1000 for node in taken), default=0)

    def reminders(self, labels: Mapping[str, str], rank: int) -> dict[str, int]:
        """Return endpoint to milliseconds after which an open alert is told again."""
        found: dict[str, int] = {}
        for node in self.taken_by(labels):
            for name in node.endpoints:
                grave = rank >= self._severities.get(name, _CRITICAL + 1)
                if grave and node.remind_every_seconds:
                    found.setdefault(name, node.remind_every_seconds * 1000)
        return found

    @property
    def reminds(self) -> bool:
        """Whether any node repeats what stays open."""
        return self.tree is not None and _any_reminds(self.tree)

    def refresh(self, connection: sa.Connection) -> None:
        """Take over a tree that was stored meanwhile, by whichever process."""
        version, stored = read_tree(connection)
        if version == self.version:
            return
        try:
            self.tree = None if stored is None else parse_tree(stored, names_in(stored))
        except RoutingError:
            self.tree = None  # written by a newer version: everybody is told rather than nobody
        self.version = version


def names_in(tree: Mapping[str, Any]) -> frozenset[str]:
    """Return the endpoints that a stored tree names: some may be gone since."""
    names = set(tree.get("endpoints", []))
    for child in tree.get("routes", []):
        names |= names_in(child)
    return frozenset(names)


def _any_reminds(node: RouteNode) -> bool:
    return bool(node.remind_every_seconds) or any(_any_reminds(child) for child in node.routes)
