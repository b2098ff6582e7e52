"""The tables of the alert store. Migrations in ``api/migrations`` create them.

Samples never pass here: one row per alert, one per event of it, one per notification.
Payloads are the JSON of the contract's AlertEvent; the columns beside them are what is
searched, sorted or locked by.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

__all__ = [
    "IS_OPEN",
    "DeliveryState",
    "alert",
    "api_key",
    "attempt",
    "audit",
    "consumer",
    "delivery",
    "endpoint",
    "event",
    "heartbeat",
    "idempotency",
    "metadata",
    "pace",
    "pushed",
    "routing",
    "series",
    "session",
    "silence",
]

metadata = sa.MetaData()

# SQLite counts rows by itself only in a column declared INTEGER, which has 64 bits there.
ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


class DeliveryState:
    """Life of one notification."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


_OPEN_TEXT = sa.text("state <> 'resolved'")
_FLAPS = sa.text("flapping_ms IS NOT NULL")
_WHILE_OPEN: dict[str, Any] = {"sqlite_where": _OPEN_TEXT, "postgresql_where": _OPEN_TEXT}

alert = sa.Table(
    "alert",
    metadata,
    sa.Column("alert_id", sa.String(36), primary_key=True),
    sa.Column("fingerprint", sa.String(36), nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("severity", sa.String(16), nullable=False),
    sa.Column("severity_rank", sa.Integer, nullable=False),
    sa.Column("family", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("scope", sa.String(16), nullable=False),
    sa.Column("node", sa.Text),
    sa.Column("gpu_uuid", sa.Text),
    sa.Column("job", sa.Text),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("started_ms", sa.BigInteger, nullable=False),
    sa.Column("last_seen_ms", sa.BigInteger, nullable=False),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("end_reason", sa.Text),
    sa.Column("received_ms", sa.BigInteger, nullable=False),
    # The newest AlertEvent without its series.
    sa.Column("payload", sa.Text, nullable=False),
    # Grows with every change, by whomever: the ETag.
    sa.Column("version", sa.BigInteger, nullable=False, server_default="1"),
    # When the state last changed, by the store's clock.
    sa.Column("changed_ms", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("rack", sa.Text),
    sa.Column("cluster", sa.Text),
    sa.Column("project", sa.Text),
    sa.Column("caused_by", sa.String(36)),
    sa.Column("acked_by", sa.Text),
    sa.Column("acked_ms", sa.BigInteger),
    sa.Column("ack_until_ms", sa.BigInteger),
    # Severity that was acknowledged: a graver one ends the acknowledgement.
    sa.Column("ack_rank", sa.Integer),
    sa.Column("assignee", sa.Text),
    sa.Column("feedback", sa.String(32)),
    sa.Column("stale_ms", sa.BigInteger),
    # Fingerprint of the alert that says that telemetry is lost.
    sa.Column("stale_by", sa.String(36)),
    sa.Column("flapping_ms", sa.BigInteger),
    sa.Column("snoozed_until_ms", sa.BigInteger),
    sa.Column("reopens", sa.Integer, nullable=False, server_default="0"),
    # Severity at which somebody resolved it by hand while it still fired.
    sa.Column("closed_rank", sa.Integer),
    sa.Column("remind_ms", sa.BigInteger),
    sa.Index("ix_alert_started", "started_ms", "alert_id"),
    sa.Index("ix_alert_state", "state", "started_ms", "alert_id"),
    sa.Index("ix_alert_node", "node", "started_ms"),
    sa.Index("ix_alert_gpu", "gpu_uuid", "started_ms"),
    sa.Index("ix_alert_fingerprint", "fingerprint", "started_ms"),
    sa.Index("ix_alert_counts", "state", "severity", "family"),
    sa.Index("ix_alert_gravest", "state", "severity_rank", "started_ms"),
    sa.Index(
        "ix_alert_flapping",
        "fingerprint",
        "changed_ms",
        sqlite_where=_FLAPS,
        postgresql_where=_FLAPS,
    ),
    sa.Index("ix_alert_changed", "changed_ms"),
    sa.Index("ix_alert_job", "job", "started_ms"),
    sa.Index("ix_alert_open", "started_ms", "alert_id", **_WHILE_OPEN),
    sa.Index("ix_alert_open_node", "node", **_WHILE_OPEN),
    # One open alert per identity: the store itself holds the promise.
    sa.Index("ux_alert_open", "fingerprint", unique=True, **_WHILE_OPEN),
)

#: An alert is open until it is resolved, whatever else it is. A literal: with a parameter SQLite
#: cannot know that the partial indexes serve.
IS_OPEN: sa.ColumnElement[bool] = alert.c.state != sa.literal_column("'resolved'")

event = sa.Table(
    "event",
    metadata,
    # Ids are never used twice, so a stream can resume.
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("alert_id", sa.String(36), nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    # "detector"; "api" for what the store concluded of it (superseded); "lifecycle" for what
    # time or the store brought; "operator". The last two count seq by the alert's version.
    sa.Column("origin", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("severity", sa.String(16), nullable=False),
    sa.Column("observed_ms", sa.BigInteger, nullable=False),
    sa.Column("received_ms", sa.BigInteger, nullable=False),
    # The AlertEvent without its series; null where nobody is told.
    sa.Column("payload", sa.Text, nullable=False),
    # What happened, a word of EventType.
    sa.Column("type", sa.String(32), nullable=False, server_default="updated"),
    sa.Column("actor", sa.Text, nullable=False, server_default="detector"),
    sa.Column("detail", sa.Text),
    sa.UniqueConstraint("alert_id", "seq", "origin", name="uq_event_identity"),
    sqlite_autoincrement=True,
)

endpoint = sa.Table(
    "endpoint",
    metadata,
    # Receivers made over REST; those of the settings file stay there, with their secrets.
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("type", sa.String(32), nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    # JSON of what may be seen.
    sa.Column("config", sa.Text, nullable=False),
    # JSON of address, secrets and token, sealed: see api.security.secretbox.
    sa.Column("sealed", sa.Text, nullable=False),
    # Until when the former secret signs as well.
    sa.Column("overlap_until_ms", sa.BigInteger),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("updated_by", sa.Text, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
)

session = sa.Table(
    "session",
    metadata,
    # SHA-256 of 256 random bits, as with keys.
    sa.Column("hash", sa.String(64), primary_key=True),
    # The key with which it was opened: it ends with that key. See KeyRing.mark_of.
    sa.Column("key_hash", sa.String(64), nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger, nullable=False),
    sa.Index("ix_session_expires", "expires_ms"),
)

delivery = sa.Table(
    "delivery",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("endpoint", sa.String(64), nullable=False),
    sa.Column("event_id", ROW_ID, sa.ForeignKey("event.id"), nullable=False),
    sa.Column("alert_id", sa.String(36), nullable=False),
    sa.Column("webhook_id", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("refusals", sa.Integer, nullable=False, server_default="0"),
    sa.Column("next_at_ms", sa.BigInteger, nullable=False),
    sa.Column("lease_until_ms", sa.BigInteger),
    sa.Column("lease_by", sa.String(64)),
    sa.Column("last_status", sa.Integer),
    sa.Column("last_error", sa.Text),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("finished_ms", sa.BigInteger),
    # The type of the event it tells, a word of EventType.
    sa.Column("kind", sa.String(32), nullable=False, server_default="fired"),
    sa.Column("group_key", sa.Text, nullable=False, server_default=""),
    # Why it waits, was cancelled, or came late; for people.
    sa.Column("note", sa.Text),
    # Delivery whose message tells this one too, in a storm; its own id at the one that is sent.
    sa.Column("digest", sa.BigInteger),
    # Whether the receiver may have it though nobody confirmed it: the line broke while it waited
    # for an answer, or the sender died.
    sa.Column("unsure", sa.Boolean, nullable=False, server_default=sa.false()),
    # When somebody last asked for it to be sent again.
    sa.Column("replayed_ms", sa.BigInteger),
    sa.UniqueConstraint("event_id", "endpoint", name="uq_delivery_event"),
    sa.Index("ix_delivery_due", "state", "endpoint", "next_at_ms"),
    sa.Index("ix_delivery_order", "endpoint", "alert_id", "id"),
    sa.Index("ix_delivery_group", "endpoint", "group_key", "id"),
    sa.Index("ix_delivery_digest", "digest"),
    sqlite_autoincrement=True,
)

pace = sa.Table(
    "pace",
    metadata,
    # State of a receiver, see api.notify.pacing.Pace. Outlives a restart: a bucket that starts
    # full again would break the provider's limit.
    sa.Column("endpoint", sa.String(64), primary_key=True),
    sa.Column("tokens", sa.Float),
    sa.Column("tokens_ms", sa.BigInteger, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("probe_ms", sa.BigInteger),
    sa.Column("probes", sa.Integer, nullable=False),
    sa.Column("failing_since_ms", sa.BigInteger),
    sa.Column("digest_ms", sa.BigInteger),
    # Start of the open alert that says that it fails.
    sa.Column("told_ms", sa.BigInteger),
)

attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("delivery_id", ROW_ID, sa.ForeignKey("delivery.id"), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("started_ms", sa.BigInteger, nullable=False),
    sa.Column("duration_ms", sa.Integer, nullable=False),
    sa.Column("status", sa.Integer),
    sa.Column("error", sa.Text),
    sa.Index("ix_attempt_delivery", "delivery_id", "number"),
)

consumer = sa.Table(
    "consumer",
    metadata,
    sa.Column("consumer_group", sa.String(200), primary_key=True),
    sa.Column("topic", sa.String(200), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("next_offset", sa.BigInteger, nullable=False),
)

series = sa.Table(
    "series",
    metadata,
    # Beside the alert, so that lists need not read it.
    sa.Column("alert_id", sa.String(36), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
)

pushed = sa.Table(
    "pushed",
    metadata,
    # The newest episode of a label set that another tool pushes, see api.alertmanager.inbox.
    sa.Column("fingerprint", sa.String(36), primary_key=True),
    sa.Column("alert_id", sa.String(36), nullable=False),
    # When it is over unless it is pushed again.
    sa.Column("ends_ms", sa.BigInteger, nullable=False),
    sa.Column("over", sa.Boolean, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
    # Annotations and origin as they were pushed last.
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("ix_pushed_alert", "alert_id"),
    sa.Index("ix_pushed_ends", "over", "ends_ms"),
)

heartbeat = sa.Table(
    "heartbeat",
    metadata,
    # A sign of life that somebody sends by name, see api.heartbeats.
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("interval_ms", sa.BigInteger, nullable=False),
    sa.Column("grace_ms", sa.BigInteger, nullable=False),
    sa.Column("severity", sa.String(16), nullable=False),
    # Whether the settings name it; if not, whoever sent it first did.
    sa.Column("declared", sa.Boolean, nullable=False),
    sa.Column("first_ms", sa.BigInteger, nullable=False),
    # Null until the first one has come.
    sa.Column("last_ms", sa.BigInteger),
    # Start of the open alert that says that it is missing.
    sa.Column("missing_ms", sa.BigInteger),
)

silence = sa.Table(
    "silence",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("matchers", sa.Text, nullable=False),
    sa.Column("comment", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
    sa.Column("starts_ms", sa.BigInteger, nullable=False),
    sa.Column("ends_ms", sa.BigInteger, nullable=False),
    sa.Column("recurrence", sa.Text),
    sa.Index("ix_silence_ends", "ends_ms"),
)

routing = sa.Table(
    "routing",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("tree", sa.Text, nullable=False),
    sa.Column("updated_by", sa.Text, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
)

api_key = sa.Table(
    "api_key",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("prefix", sa.String(16), nullable=False),
    # SHA-256 of a key of 256 random bits: nothing to guess, so no slow hash is needed.
    sa.Column("hash", sa.String(64), nullable=False, unique=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger),
    sa.Column("revoked_ms", sa.BigInteger),
    sa.Column("last_used_ms", sa.BigInteger),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("object_type", sa.String(32), nullable=False),
    sa.Column("object_id", sa.Text, nullable=False),
    sa.Column("detail", sa.Text),
    sa.Column("request_id", sa.String(32)),
    sa.Index("ix_audit_object", "object_type", "object_id", "id"),
    sqlite_autoincrement=True,
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("principal", sa.String(100), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("request_hash", sa.String(64), nullable=False),
    # Null while the first request is under way.
    sa.Column("status", sa.Integer),
    sa.Column("headers", sa.Text),
    sa.Column("body", sa.LargeBinary),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Index("ix_idempotency_created", "created_ms"),
)
