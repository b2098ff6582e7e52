"""``foreshock alerts``: look at alerts, take them over, hush them, follow them, over REST."""
# ruff: noqa: PLC0415 - heavy imports inside the commands, as in foreshock.cli

from __future__ import annotations

import json
import os
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreshock.restplace import ConfigOption, JsonOption, KeyFileOption, UrlOption, open_client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from api.client import ApiClient

__all__ = ["alerts_app", "moment"]

alerts_app = typer.Typer(
    help="The alerts of a running api. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, "
    "4 not allowed.",
    no_args_is_help=True,
)

_SEARCHED = 5000
_INTERRUPTED = 130  # 128 + SIGINT, as shells say it
_RANKS = {"info": 1, "warning": 2, "critical": 3}
_SPAN = re.compile(r"(\d{1,4})(min|m|h|d)", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_PREFIX = re.compile(r"[0-9a-f-]{4,36}", re.ASCII)

_Ids = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Ids of alerts, or how they begin.")
]
_Severity = Annotated[
    str | None, typer.Option("--severity", metavar="info|warning|critical", help="At least this.")
]
_Comment = Annotated[str | None, typer.Option(help="Why, for the timeline.")]
_Node = Annotated[str | None, typer.Option(help="Only this node.")]
_Kind = Annotated[str | None, typer.Option(help="Only this kind, such as leak.")]
_Match = Annotated[
    list[str] | None,
    typer.Option("--match", metavar="MATCHER", help='Such as node=~"gpu-1.*"; may be repeated.'),
]


@alerts_app.command("list")
def list_alerts(
    state: Annotated[
        str,
        typer.Option(
            metavar="open|firing|acknowledged|stale|resolved|any", help="Only this state."
        ),
    ] = "open",
    severity: _Severity = None,
    node: _Node = None,
    gpu: Annotated[str | None, typer.Option(help="GPU UUID, or the index on its node.")] = None,
    job: Annotated[str | None, typer.Option(help="Only this job.")] = None,
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    kind: _Kind = None,
    match: _Match = None,
    text: Annotated[str | None, typer.Option("--text", help="Part of the summary.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    as_json: JsonOption = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """List alerts, newest start first."""
    wanted = {
        "state": None if state == "any" else state,
        "severity_min": severity,
        "node": node,
        "gpu": gpu,
        "job": job,
        "family": family,
        "kind": kind,
        "match": match or None,
        "q": text,
    }
    with open_client(url, key_file, config) as client:
        found = list(client.pages("/v1/alerts", "alerts", wanted, limit))
    if as_json:
        _print_json(found)
        return
    if not found:
        typer.echo("No alert matches." if state != "open" else "No alert is open that matches.")
        return
    from foreshock.alertsview import alert_table, console_of

    console_of(sys.stdout).print(alert_table(found, time.time_ns() // 1_000_000))
    if len(found) == limit:
        typer.echo(f"Only the newest {limit}; there may be more (--limit).", err=True)


@alerts_app.command("show")
def show(
    alert_id: Annotated[str, typer.Argument(metavar="ID", help="Id, or how it begins.")],
    as_json: JsonOption = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Show one alert: evidence, cause, next steps, timeline, who was told."""
    with open_client(url, key_file, config) as client:
        found = client.get(f"/v1/alerts/{full_id(client, alert_id)}")
        if as_json:
            _print_json(found)
            return
        path = f"/v1/alerts/{found['alert_id']}"
        timeline = client.get(f"{path}/timeline")["events"]
        told = client.get(f"{path}/notifications")["notifications"]
    from foreshock.alertsview import console_of, show_alert

    show_alert(console_of(sys.stdout), found, timeline[-20:], told[:10])


@alerts_app.command("ack")
def ack(
    ids: _Ids,
    until: Annotated[
        str | None,
        typer.Option(metavar="2h|TIME", help="For how long, or until when; a day by default."),
    ] = None,
    comment: _Comment = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take it back.")] = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Acknowledge alerts: nobody else is told until they end or grow graver."""
    body: dict[str, str] = {} if comment is None else {"comment": comment}
    if until is not None and not undo:
        body["until"] = moment(until)
    with open_client(url, key_file, config) as client:
        for alert_id in [full_id(client, text) for text in ids]:
            done = client.send(
                "POST", f"/v1/alerts/{alert_id}/{'unack' if undo else 'ack'}", json=body
            )
            acked = done.get("acknowledged") or {}
            by = f" by {acked['by']} until {acked['until']}" if acked else ""
            typer.echo(f"{alert_id} is {done['state']}{by}")


@alerts_app.command("silence")
def silence(
    comment: Annotated[str, typer.Option(help="Why; needed.")],
    alert_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Silence what is like this alert.")
    ] = None,
    match: _Match = None,
    until: Annotated[
        str, typer.Option("--for", metavar="2h|TIME", help="For how long, or until when.")
    ] = "2h",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be hidden.")
    ] = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Tell nobody of alerts that match: of one alert's kind and place, or of your matchers."""
    if (alert_id is None) == (not match):
        raise typer.BadParameter("Give either the ID of an alert or --match.")
    ends_at = moment(until)
    with open_client(url, key_file, config) as client:
        if alert_id is not None:
            matchers = _like(client.get(f"/v1/alerts/{full_id(client, alert_id)}"))
        else:
            matchers = [_matcher(text) for text in match or ()]
        preview = client.send("POST", "/v1/silences:preview", json={"matchers": matchers})
        words = ", ".join(f'{m["name"]}{m["op"]}"{m["value"]}"' for m in matchers)
        hides = (
            f"{preview['open']} open alerts now, {preview['last_7_days']} in the last seven days"
        )
        if dry_run:
            typer.echo(f"{words} would hide {hides}")
            return
        made = client.send(
            "POST",
            "/v1/silences",
            json={"matchers": matchers, "ends_at": ends_at, "comment": comment},
        )
    typer.echo(f"{made['id']} hides {words} until {made['ends_at']}: {hides}")


@alerts_app.command("watch")
def watch(
    severity: _Severity = None,
    node: _Node = None,
    kind: _Kind = None,
    after: Annotated[
        int | None, typer.Option(min=0, help="Begin after this id of the event log.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many events; by default never.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Follow what happens to alerts; a lost line is taken up again and nothing is missed."""
    if severity is not None and severity not in _RANKS:
        raise typer.BadParameter(f"--severity takes {', '.join(_RANKS)}; got {severity!r}.")
    client = open_client(url, key_file, config)
    try:
        _watch(client, after, count, severity, node, kind, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:  # as in: foreshock alerts watch | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def _watch(
    client: ApiClient,
    after: int | None,
    count: int | None,
    severity: str | None,
    node: str | None,
    kind: str | None,
    *,
    as_json: bool,
) -> None:
    from foreshock.alertsview import event_line

    shown = 0
    with client:
        for event in client.follow(after, lambda text: typer.echo(f"foreshock: {text}", err=True)):
            if event.name == "resync":
                typer.echo("foreshock: Too much was missed; read the list again.", err=True)
                continue
            if not _wanted(event.data, severity, node, kind):
                continue
            line = json.dumps(event.data, ensure_ascii=False) if as_json else event_line(event.data)
            print(line, flush=True)  # noqa: T201 - the command's own voice, line by line
            shown += 1
            if count is not None and shown >= count:
                return


def full_id(client: ApiClient, text: str) -> str:
    """Return the id of the one alert that begins so.

    Raises
    ------
    RestError
        If there is none, or more than one.
    """
    from api.client import NotFoundError, RestError

    wanted = text.lower()
    if _UUID.fullmatch(wanted):
        return wanted
    if not _PREFIX.fullmatch(wanted):
        raise RestError("An id of an alert, or its first four characters or more, is needed.", 2)
    found = []
    for state in ("open", None):  # what is open is asked for most, and is little
        pages = client.pages("/v1/alerts", "alerts", {"state": state}, _SEARCHED)
        found = [one["alert_id"] for one in pages if one["alert_id"].startswith(wanted)]
        if found:
            break
    if not found:
        raise NotFoundError(f"No alert among the newest {_SEARCHED} has an id that begins so.")
    if len(found) > 1:
        raise RestError(f"{len(found)} alerts have ids that begin so: give more of it.", 2)
    return str(found[0])


def moment(text: str, now: datetime | None = None) -> str:
    """Return the time that a span from now, or a time, names, as the api takes it.

    Examples
    --------
    >>> moment("90min", datetime(2026, 1, 31, 12, tzinfo=UTC))
    '2026-01-31T13:30:00Z'
    >>> moment("2026-02-01T00:00:00+08:00")
    '2026-01-31T16:00:00Z'
    """
    span = _SPAN.fullmatch(text)
    if span:
        unit = {"d": "days", "h": "hours"}.get(span[2], "minutes")
        end = (now or datetime.now(UTC)) + timedelta(**{unit: int(span[1])})
    else:
        try:
            end = datetime.fromisoformat(text)
        except ValueError:
            end = datetime.min  # noqa: DTZ901 - has no zone, so it is refused below
        if end.tzinfo is None:
            raise typer.BadParameter(
                "A time is a span such as 30m, 2h or 1d, or RFC 3339 with a zone: "
                "2026-01-31T12:00:00Z."
            )
    return end.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _like(one: Mapping[str, Any]) -> list[dict[str, str]]:  # decoded JSON of an alert
    subject = one["subject"]
    words = {"alertname": f"{one['family']}/{one['kind']}"}
    for name, field in (("gpu", "gpu_uuid"), ("node", "node"), ("job", "job"), ("rack", "rack")):
        if subject.get(field) and (name != "job" or subject.get("scope") == "job"):
            words[name] = str(subject[field])
    return [{"name": name, "op": "=", "value": value} for name, value in words.items()]


def _matcher(text: str) -> dict[str, str]:
    from api.matchers import MatcherError, parse_matcher

    try:
        found = parse_matcher(text)
    except MatcherError as exc:
        raise typer.BadParameter(f"--match: {exc}.") from None
    return {"name": found.name, "op": found.op, "value": found.value}


def _wanted(
    entry: Mapping[str, Any],  # decoded JSON of an entry of the log
    severity: str | None,
    node: str | None,
    kind: str | None,
) -> bool:
    event = entry.get("event") or {}
    if severity and _RANKS.get(str(entry.get("severity")), 0) < _RANKS[severity]:
        return False
    if node and (event.get("subject") or {}).get("node") != node:
        return False
    return not kind or event.get("kind") == kind


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
