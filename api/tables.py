"""The tables of the alert store. Migrations in ``api/migrations`` create them.

Samples never pass here: one row per alert, one per event of it, one per notification.
Payloads are the JSON of the contract's AlertEvent; the columns beside them are what is
searched, sorted or locked by.
"""

from __future__ import annotations

import sqlalchemy as sa

__all__ = [
    "DeliveryState",
    "alert",
    "attempt",
    "consumer",
    "delivery",
    "endpoint",
    "event",
    "metadata",
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
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index("ix_alert_started", "started_ms", "alert_id"),
    sa.Index("ix_alert_state", "state", "started_ms", "alert_id"),
    sa.Index("ix_alert_node", "node", "started_ms"),
    sa.Index("ix_alert_gpu", "gpu_uuid", "started_ms"),
    sa.Index("ix_alert_fingerprint", "fingerprint", "started_ms"),
    sa.Index("ix_alert_counts", "state", "severity", "family"),
    sa.Index("ix_alert_gravest", "state", "severity_rank", "started_ms"),
    # One open alert per identity: the store itself holds the promise.
    sa.Index(
        "ux_alert_open",
        "fingerprint",
        unique=True,
        sqlite_where=sa.text("state = 'firing'"),
        postgresql_where=sa.text("state = 'firing'"),
    ),
)

event = sa.Table(
    "event",
    metadata,
    # Ids are never used twice, so a stream can resume.
    sa.Column("id", ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("alert_id", sa.String(36), nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    # "detector", or "api" for what the store concluded itself (superseded).
    sa.Column("origin", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("severity", sa.String(16), nullable=False),
    sa.Column("observed_ms", sa.BigInteger, nullable=False),
    sa.Column("received_ms", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.UniqueConstraint("alert_id", "seq", "origin", name="uq_event_identity"),
    sqlite_autoincrement=True,
)

endpoint = sa.Table(
    "endpoint",
    metadata,
    # No URL and no secret: they stay in the operator's settings.
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("type", sa.String(32), nullable=False),
    sa.Column("severity_min", sa.String(16), nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("seen_ms", sa.BigInteger, nullable=False),
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
    sa.UniqueConstraint("event_id", "endpoint", name="uq_delivery_event"),
    sa.Index("ix_delivery_due", "state", "endpoint", "next_at_ms"),
    sa.Index("ix_delivery_order", "endpoint", "alert_id", "id"),
    sqlite_autoincrement=True,
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
