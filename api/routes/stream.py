"""``/v1/events`` and ``/v1/stream``: the event log, polled or pushed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import orjson
import structlog
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.sse import format_sse_event
from starlette.concurrency import run_in_threadpool

from api.feed import Feed
from api.metrics import ApiMetrics
from api.models import EventPage
from api.queries import Queries
from api.routes.alerts import events_seen_by
from api.routes.parts import (
    KNOWN_ONLY,
    MAX_ID,
    PROBLEMS,
    FeedOf,
    Limit,
    PrincipalOf,
    QueriesOf,
    json_answer,
    needs,
)
from api.security.principal import Principal, Scope
from schemas.errors import DataDirError, StoreError

__all__ = ["ENDLESS_PATHS", "REPLAY_LIMIT", "router"]

_log = structlog.get_logger(__name__)

router = APIRouter(
    prefix="/v1",
    tags=["events"],
    responses=PROBLEMS,
    dependencies=[*KNOWN_ONLY, needs(Scope.ALERTS_READ)],
)

#: Who missed more reads the lists again instead.
REPLAY_LIMIT = 10_000
#: Answers that end only with the line or the service.
ENDLESS_PATHS = frozenset({"/v1/stream"})
_PAGE = 200


class _EventStream(StreamingResponse):
    # FastAPI's own EventSourceResponse fixes the heartbeat and cannot be told to end.
    media_type = "text/event-stream"


@router.get("/events", response_model=EventPage, summary="Read the event log after an id")
def list_events(
    queries: QueriesOf,
    who: PrincipalOf,
    after: Annotated[int, Query(ge=0, le=MAX_ID, description="Last id already read.")] = 0,
    limit: Limit = 100,
) -> Response:
    """Return events in the order in which the store took them."""
    events = events_seen_by(who, queries.events_after(after, limit))
    return json_answer({"events": events, "last_id": events[-1]["id"] if events else after})


@router.get(
    "/stream",
    response_class=_EventStream,
    summary="Follow alert events as they come (server-sent events)",
)
async def stream(
    request: Request,
    queries: QueriesOf,
    feed: FeedOf,
    who: PrincipalOf,
    last_event_id: Annotated[int | None, Header(ge=0, le=MAX_ID)] = None,
) -> _EventStream:
    """Send each event as ``alert`` with the log's id; resume with ``Last-Event-ID``.

    Without ``Last-Event-ID`` only new events come. Who has missed more than 10,000 gets one
    event ``resync``: read the lists again. A comment every 15 s shows that the line is alive.
    """
    metrics: ApiMetrics = request.app.state.metrics
    heartbeat: float = request.app.state.settings.heartbeat_seconds
    return _EventStream(
        _follow(queries, feed, who, metrics, last_event_id, heartbeat),
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _follow(
    queries: Queries,
    feed: Feed,
    who: Principal,
    metrics: ApiMetrics,
    last_event_id: int | None,
    heartbeat_seconds: float,
) -> AsyncIterator[bytes]:
    listener = feed.listen()  # before the first look, so that nothing falls between
    metrics.streams.inc()
    try:
        newest = await run_in_threadpool(queries.last_event_id)
        position = newest if last_event_id is None else last_event_id
        if position > newest or newest - position > REPLAY_LIMIT:
            position = newest
            yield format_sse_event(data_str="{}", event="resync", id=str(newest))
        else:
            yield format_sse_event(comment="connected")
        while not feed.closed:
            events = await run_in_threadpool(queries.events_after, position, _PAGE)
            for entry in events_seen_by(who, events):
                position = entry["id"]
                yield format_sse_event(
                    data_str=orjson.dumps(entry).decode(), event="alert", id=str(position)
                )
            if len(events) < _PAGE and not await listener.wait(heartbeat_seconds):
                yield format_sse_event(comment="alive")
    except (StoreError, DataDirError) as exc:
        # The client comes back with Last-Event-ID and misses nothing.
        _log.warning("stream_ended", error=str(exc))
    finally:
        metrics.streams.dec()
        listener.close()
