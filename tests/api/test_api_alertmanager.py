"""Alertmanager's API over our store, asked by its own tools. On both stores."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from api.alertmanager.inbox import RESOLVE_MS, Inbox
from api.alertmanager.pushed import PushedAlert, event_of
from api.crowds import _is_expensive
from api.database import Database
from api.ledger import Ledger, Route
from api.matchers import labels_of
from api.queries import AlertFilter, Queries
from api.tables import delivery, event
from bus.memory import MemoryBus
from schemas.alert import AlertEvent, Severity
from schemas.codec import encode

MINUTE_MS = 60_000
T0 = 1_758_684_000_000
NOC = Route(endpoint="noc", severity_min=Severity.WARNING)


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        words = f"there is no {name} here (Debian's packages prometheus, prometheus-alertmanager)"
        if os.environ.get("FORESHOCK_REQUIRE_SERVICES") == "1":
            pytest.fail(words)
        pytest.skip(words)
    return found


@pytest.fixture
def amtool(each_api: Any) -> Callable[..., str]:
    url = str(each_api.client.base_url).rstrip("/")
    path = program("amtool")

    def run(*words: str, fails: bool = False) -> str:
        done = subprocess.run(
            [path, f"--alertmanager.url={url}", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"HOME": "/nonexistent", "PATH": os.environ["PATH"]},
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stdout + done.stderr

    return run


def shown(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def names(alerts: Sequence[dict[str, Any]]) -> set[str]:
    return {one["labels"]["gpu"] for one in alerts}


def test_acceptance_18_amtool_queries_alerts_by_matchers_and_state(
    each_api: Any, amtool: Any, make_event: Any, wait_until: Any
) -> None:
    each_api.send(
        make_event(gpu="GPU-1"),
        make_event(gpu="GPU-2", node="node-2", severity="critical"),
        make_event(gpu="GPU-3", node="node-3"),
        make_event(gpu="GPU-3", node="node-3", seq=2, state="resolved"),
    )
    wait_until(lambda: len(each_api.alerts(state="open")) == 2)
    query = ("alert", "query", "-o", "json")
    assert names(shown(amtool(*query))) == {"GPU-1", "GPU-2"}
    assert names(shown(amtool(*query, "node=~node-[2-9]"))) == {"GPU-2"}
    assert names(shown(amtool(*query, "severity!=critical"))) == {"GPU-1"}
    assert names(shown(amtool(*query, "thermal_fault/peer_outlier"))) == {"GPU-1", "GPU-2"}
    assert shown(amtool(*query, "--receiver=noc")) == []
    assert names(shown(amtool(*query, "--receiver=nobody"))) == {"GPU-1", "GPU-2"}
    assert "peer_outlier" in amtool("alert", "query")
    wrong = each_api.client.get("/api/v2/alerts", params={"filter": "node=~("})
    assert (wrong.status_code, "expression" in wrong.json()) == (400, True)


def test_acceptance_18_amtool_adds_queries_updates_and_expires_silences(
    each_api: Any, amtool: Any, make_event: Any, wait_until: Any
) -> None:
    each_api.send(make_event(gpu="GPU-1"), make_event(gpu="GPU-2", node="node-2"))
    wait_until(lambda: len(each_api.alerts()) == 2)
    add = ("silence", "add", "--author=mallory", "--duration=2h", "--comment=fan swap")
    silence_id = amtool(*add, "node=node-1").strip()
    (made,) = shown(amtool("silence", "query", "-o", "json", "node=node-1"))
    assert made["id"] == silence_id
    assert made["createdBy"] == "local", "the author is the one whose key it is"
    assert made["status"]["state"] == "active"
    assert shown(amtool("silence", "query", "-o", "json", "node=node-7")) == []
    query = ("alert", "query", "-o", "json")
    assert names(shown(amtool(*query))) == {"GPU-2"}
    (quiet,) = shown(amtool(*query, "--silenced"))
    assert quiet["status"] == {
        "state": "suppressed",
        "silencedBy": [silence_id],
        "inhibitedBy": [],
    }
    amtool("silence", "update", "--duration=3h", "--comment=longer", silence_id)
    (changed,) = shown(amtool("silence", "query", "-o", "json"))
    assert (changed["id"], changed["comment"]) == (silence_id, "longer")
    amtool("silence", "expire", silence_id)
    assert names(shown(amtool(*query))) == {"GPU-1", "GPU-2"}
    (ended,) = shown(amtool("silence", "query", "-o", "json", "--expired"))
    assert ended["status"]["state"] == "expired"
    actions = [e["action"] for e in each_api.client.get("/v1/audit").json()["entries"]]
    assert actions == ["silence.end", "silence.change", "silence.create"]
    too_long = ("silence", "add", "--duration=9000h", "--comment=x", "node=node-1")
    assert "at most 30 days" in amtool(*too_long, fails=True)
    assert "matcher" in amtool("silence", "add", "--comment=x", "node=~.*", fails=True)


def test_acceptance_18_amtool_adds_an_alert_that_stands_in_the_list_and_ends(
    each_api: Any, amtool: Any, wait_until: Any
) -> None:
    add = ("alert", "add", "DiskFull", "node=node-9", "severity=page")
    amtool(*add, "--annotation=summary=/var is full")
    (one,) = each_api.alerts(state="open")
    assert (one["summary"], one["severity"]) == ("/var is full", "critical")
    assert (one["kind"], one["subject"]["node"]) == ("external", "node-9")
    (told,) = shown(amtool("alert", "query", "-o", "json", "alertname=DiskFull"))
    assert told["annotations"]["summary"] == "/var is full"
    assert told["labels"]["pushed_severity"] == "page"
    amtool(*add, "--end=2001-01-01T00:00:00Z", "--start=2000-01-01T00:00:00Z")
    (over,) = each_api.alerts(state="resolved")
    assert over["end_reason"] == "resolved by the sender"


def test_acceptance_18_amtool_shows_what_runs_and_the_routes(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    endpoint_for: Any,
    running_api: Any,
) -> None:
    path = program("amtool")
    tree = {
        "endpoints": ["noc"],
        "routes": [{"match": ['rack=~"r1.*"', 'kind="fan"'], "endpoints": [], "continue": True}],
    }
    with running_api(tmp_path, bus, endpoints=(endpoint_for(receiver),)) as running:
        assert running.client.put("/v1/routes", json=tree).status_code == 200
        url = f"--alertmanager.url={running.client.base_url}"

        def run(*words: str) -> str:
            done = subprocess.run([path, url, *words], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert "different" not in done.stderr, "the versions agree"
            return done.stdout

        assert 'receiver: "noc"' in run("config", "show")
        assert "disabled" in run("cluster", "show")
        assert "noc" in run("config", "routes", "show")
        assert run("config", "routes", "test", "rack=r12", "kind=fan").strip() == "nobody"
        assert run("config", "routes", "test", "rack=r7").strip() == "noc"
        answer = running.client.get("/metrics").text
        assert 'alertmanager_build_info{version="0.25.0"} 1.0' in answer
        assert "very-secret-path" not in run("config", "show")
        assert running.client.get("/alertmanager/api/v2/status").status_code == 404


@pytest.fixture
def keyed(tmp_path: Path, bus: MemoryBus, running_api: Any) -> Iterator[Any]:
    """An api that asks for keys; makes one of a role."""
    key = "an-administrators-key"
    with running_api(tmp_path, bus, api_key=key) as running:
        headers = {"authorization": f"Bearer {key}"}

        def client(**body: Any) -> httpx2.Client:
            made = running.client.post("/v1/api-keys", json=body, headers=headers).json()
            return httpx2.Client(
                base_url=running.client.base_url,
                trust_env=False,
                headers={"authorization": f"Bearer {made['key']}"},
            )

        running.key_of = client
        yield running


SILENCE = {
    "matchers": [{"name": "node", "value": "n1", "isRegex": False}],
    "startsAt": "2026-01-31T12:00:00Z",
    "endsAt": "2199-01-31T12:00:00Z",
    "createdBy": "x",
    "comment": "y",
}


def test_roles_hold_here_as_everywhere(keyed: Any) -> None:
    push = [{"labels": {"alertname": "A", "user": "ada"}}]
    assert keyed.client.get("/api/v2/alerts").status_code == 401
    with (
        keyed.key_of(name="v", role="viewer") as viewer,
        keyed.key_of(name="o", role="operator") as operator,
        keyed.key_of(name="p", scopes=["ingest"]) as pusher,
    ):
        assert viewer.get("/api/v2/alerts").json() == []
        assert viewer.post("/api/v2/silences", json=SILENCE).status_code == 403
        assert viewer.post("/api/v2/alerts", json=push).status_code == 403
        refused = operator.post("/api/v2/silences", json=SILENCE)
        assert (refused.status_code, type(refused.json())) == (400, str), "a sentence, as asked"
        assert pusher.get("/api/v2/alerts").status_code == 403
        assert pusher.post("/api/v2/alerts", json=push).status_code == 200
        (hidden,) = viewer.get("/api/v2/alerts").json()
        (seen,) = operator.get("/api/v2/alerts").json()
        assert (hidden["labels"]["user"], seen["labels"]["user"]) == ("[hidden]", "ada")


def test_acceptance_18_amtool_shows_its_key_from_a_file(keyed: Any, tmp_path: Path) -> None:
    with keyed.key_of(name="ada", role="operator") as operator:
        key = operator.headers["authorization"].removeprefix("Bearer ")
    config = tmp_path / "amtool-http.yml"
    config.write_text(f"authorization:\n  credentials: {key}\n")
    words = [program("amtool"), f"--alertmanager.url={keyed.client.base_url}"]
    add = ["silence", "add", "--author=mallory", "--comment=x", "node=n1"]
    refused = subprocess.run([*words, *add], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    words.append(f"--http.config.file={config}")
    done = subprocess.run([*words, *add], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    query = [*words, "silence", "query", "-o", "json"]
    text = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    assert [one["createdBy"] for one in shown(text)] == ["ada"]


NO_ALERTS: list[Any] = [
    [{}],
    [{"labels": {}}],
    [{"labels": {"a": ""}}],
    [{"labels": {"no-name": "x"}}],
    [{"labels": {"a": "x" * 1025}}],
    [{"labels": {f"l{n}": "x" for n in range(65)}}],
    [{"labels": {"a": "\ud800"}}],
    [{"labels": {"a": "x"}, "endsAt": "9999-01-01T00:00:00Z"}],
    [{"labels": {"a": "x"}, "startsAt": "2026-01-02T00:00:00Z", "endsAt": "2026-01-01T00:00:00Z"}],
    [{"labels": {"a": "x"}, "startsAt": 17}],
    {"labels": {"a": "x"}},
    "x",
]


def test_what_is_no_alert_is_refused_with_a_sentence(api: Any) -> None:
    for body in NO_ALERTS:
        answer = api.client.post(
            "/api/v2/alerts",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 400, (body, answer.text)
        assert isinstance(answer.json(), str)
        assert "xxx" not in answer.text
    assert api.alerts() == []


def test_groups_hold_alerts_of_one_cause_for_each_receiver(
    tmp_path: Path,
    bus: MemoryBus,
    receiver: Any,
    endpoint_for: Any,
    running_api: Any,
    make_event: Any,
    wait_until: Any,
) -> None:
    with running_api(tmp_path, bus, endpoints=(endpoint_for(receiver),)) as running:
        running.send(
            make_event(gpu="GPU-1"),
            make_event(gpu="GPU-2"),
            make_event(gpu="GPU-3", node="node-2", severity="info"),
        )
        wait_until(lambda: len(running.alerts()) == 3)
        found = running.client.get("/api/v2/alerts/groups").json()
        names_of = {g["receiver"]["name"]: (g["labels"], names(g["alerts"])) for g in found}
        assert names_of == {
            "noc": ({"node": "node-1"}, {"GPU-1", "GPU-2"}),
            "nobody": ({"node": "node-2"}, {"GPU-3"}),
        }
        listed = running.client.get("/api/v2/receivers").json()
        assert [one["name"] for one in listed] == ["noc", "nobody"]


def test_an_alert_that_a_graver_one_explains_is_inhibited_by_it(
    each_api: Any, make_event: Any, wait_until: Any
) -> None:
    root = make_event(gpu="GPU-1", severity="critical")
    each_api.send(root, make_event(gpu="GPU-2", caused_by=root.fingerprint))
    wait_until(lambda: len(each_api.alerts()) == 2)
    found = {a["labels"]["gpu"]: a for a in each_api.client.get("/api/v2/alerts").json()}
    assert found["GPU-1"]["status"]["state"] == "active"
    assert found["GPU-2"]["status"]["inhibitedBy"] == [found["GPU-1"]["fingerprint"]]
    quiet = each_api.client.get("/api/v2/alerts", params={"inhibited": "false"}).json()
    assert names(quiet) == {"GPU-1"}
    suppressed = each_api.client.get("/api/v2/alerts", params={"active": "false"}).json()
    assert names(suppressed) == {"GPU-2"}


def pushed(**changes: Any) -> PushedAlert:
    fields: dict[str, Any] = {
        "labels": {"alertname": "DiskFull", "node": "n1"},
        "annotations": {"summary": "/var is 95 % full"},
        "starts_ms": T0,
    }
    return PushedAlert(**(fields | changes))


def inbox(database: Database, started_ms: int | None = None) -> Inbox:
    return Inbox(database, Ledger([NOC]), started_ms)


def states(database: Database) -> list[str]:
    found, _ = Queries(database).alerts(AlertFilter(), limit=100, cursor=None)
    return [one["state"] for one in found]


def count(database: Database, table: sa.Table) -> int:
    with database.read() as connection:
        found: int = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
    return found


def test_a_repetition_changes_nothing_but_the_end(database: Database) -> None:
    box = inbox(database)
    for minute in range(30):
        box.take([pushed(ends_ms=T0 + (minute + 4) * MINUTE_MS)], T0 + minute * MINUTE_MS)
        box.look(T0 + minute * MINUTE_MS)
    assert states(database) == ["firing"]
    assert (count(database, event), count(database, delivery)) == (1, 1)


def test_what_is_not_repeated_in_time_is_over_and_told(database: Database) -> None:
    box = inbox(database)
    box.take([pushed(starts_ms=None)], T0)
    assert box.look(T0 + RESOLVE_MS - 1) == 0
    assert box.look(T0 + RESOLVE_MS) == 1
    assert box.look(T0 + RESOLVE_MS) == 0
    (one,), _ = Queries(database).alerts(AlertFilter(), limit=10, cursor=None)
    assert (one["state"], one["end_reason"]) == ("resolved", "not renewed")
    assert one["ended_at"] == "2025-09-24T03:25:00.000Z"
    assert count(database, delivery) == 2


def test_what_lapsed_while_we_were_away_gets_the_time_to_be_repeated(database: Database) -> None:
    inbox(database).take([pushed(ends_ms=T0 + 4 * MINUTE_MS)], T0)
    back = T0 + 60 * MINUTE_MS
    box = inbox(database, started_ms=back)
    assert box.look(back) == 0
    box.take([pushed(ends_ms=back + 5 * MINUTE_MS)], back + MINUTE_MS)
    assert box.look(back + 4 * MINUTE_MS) == 0
    assert states(database) == ["firing"]
    gone = inbox(database, started_ms=back)
    assert gone.look(back + 6 * MINUTE_MS) == 1


def test_an_end_is_told_once_and_the_next_episode_is_another_alert(database: Database) -> None:
    box = inbox(database)
    box.take([pushed()], T0)
    for _ in range(2):
        box.take([pushed(ends_ms=T0 + MINUTE_MS)], T0 + 2 * MINUTE_MS)
    assert states(database) == ["resolved"]
    later = T0 + 60 * MINUTE_MS
    box.take([pushed(starts_ms=later)], later)
    assert states(database) == ["firing", "resolved"]
    box.take([pushed(ends_ms=later + 1)], later + 2)
    assert states(database) == ["resolved", "resolved"]


def test_the_same_episode_that_comes_again_is_the_same_alert(database: Database) -> None:
    box = inbox(database)
    box.take([pushed()], T0)
    box.look(T0 + RESOLVE_MS)
    box.take([pushed()], T0 + 20 * MINUTE_MS)
    assert states(database) == ["firing"]


def test_the_end_of_what_nobody_knows_is_nothing(database: Database) -> None:
    assert inbox(database).take([pushed(ends_ms=T0 + 1)], T0 + 2) == 0
    assert states(database) == []


def test_words_that_change_are_shown_and_logged_once_a_minute(database: Database) -> None:
    box = inbox(database)
    for second in range(0, 180, 15):
        said = {"summary": f"/var is {second} % full"}
        box.take([pushed(annotations=said)], T0 + second * 1000)
    assert count(database, event) == 3
    assert count(database, delivery) == 1


def test_labels_are_kept_and_those_with_a_name_of_ours_under_another() -> None:
    labels = {
        "alertname": "GpuHot",
        "severity": "page",
        "Hostname": "n7",
        "UUID": "GPU-abc",
        "gpu": "3",
        "kind": "mine",
        "team": "hpc",
        "job": "dcgm-exporter",
    }
    made: AlertEvent = event_of(pushed(labels=labels), started_ms=T0, seq=1, now_ms=T0)
    assert (made.subject.scope, made.subject.node, made.subject.gpu_uuid) == (
        "gpu",
        "n7",
        "GPU-abc",
    )
    assert made.subject.gpu_index == 3
    found = labels_of(json.loads(encode(made)))
    assert {k: found[k] for k in ("alertname", "severity", "gpu", "node", "kind", "team")} == {
        "alertname": "GpuHot",
        "severity": "critical",
        "gpu": "GPU-abc",
        "node": "n7",
        "kind": "external",
        "team": "hpc",
    }
    assert found["pushed_severity"] == "page"
    assert (found["pushed_gpu"], found["pushed_kind"]) == ("3", "mine")


RULES = """
groups:
- name: gpus
  rules:
  - alert: GpuHot
    expr: {expression}
    labels: {{severity: page, node: n7}}
    annotations: {{summary: "n7 is hot", runbook_url: "https://wiki.example/hot"}}
"""
PROMETHEUS = """
global: {{evaluation_interval: 1s}}
rule_files: [rules.yml]
alerting:
  alertmanagers:
  - static_configs: [{{targets: ["{target}"]}}]
scrape_configs: []
"""


def test_acceptance_18_rules_of_a_real_prometheus_land_in_the_list_and_end(
    tmp_path: Path, api: Any, wait_until: Any
) -> None:
    """On one store: waiting for Prometheus takes ten seconds."""
    path = program("prometheus")
    target = str(api.client.base_url).rstrip("/").removeprefix("http://")
    (tmp_path / "prometheus.yml").write_text(PROMETHEUS.format(target=target))
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.format(expression="vector(1)"))
    process = subprocess.Popen(
        [
            path,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            "--web.listen-address=127.0.0.1:0",
            "--rules.alert.resend-delay=1s",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        (one,) = wait_until(lambda: api.alerts(state="open"), 60)
        assert (one["summary"], one["severity"]) == ("n7 is hot", "critical")
        assert one["next_steps"] == ["Runbook: https://wiki.example/hot"]
        rules.write_text(RULES.format(expression="vector(1) > 2"))
        process.send_signal(signal.SIGHUP)
        (over,) = wait_until(lambda: api.alerts(state="resolved"), 60)
        assert over["alert_id"] == one["alert_id"]
        assert over["end_reason"] == "resolved by the sender"
    finally:
        process.terminate()
        process.wait(30)


def test_acceptance_18_promtool_finds_no_fault_in_the_metrics(
    api: Any, make_event: Any, wait_until: Any
) -> None:
    api.send(make_event())
    wait_until(api.alerts)
    text = api.client.get("/metrics").text
    done = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_pushes_are_let_through_where_reads_of_everything_wait() -> None:
    path = "/api/v2/alerts"
    asked = [_is_expensive({"path": path, "method": method}) for method in ("GET", "POST")]
    assert asked == [True, False]
    assert not _is_expensive({"path": "/api/v2/silences", "method": "GET"})
