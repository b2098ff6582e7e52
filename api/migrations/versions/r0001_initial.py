"""First shape of the store: alerts, their events, endpoints, deliveries, read positions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create every table and index."""
    _alerts()
    _events()
    _deliveries()
    op.create_table(
        "consumer",
        sa.Column("consumer_group", sa.String(200), primary_key=True),
        sa.Column("topic", sa.String(200), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
    )


def _alerts() -> None:
    op.create_table(
        "alert",
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
    )
    for name, columns in (
        ("ix_alert_started", ["started_ms", "alert_id"]),
        ("ix_alert_state", ["state", "started_ms", "alert_id"]),
        ("ix_alert_gravest", ["state", "severity_rank", "started_ms"]),
        ("ix_alert_node", ["node", "started_ms"]),
        ("ix_alert_gpu", ["gpu_uuid", "started_ms"]),
        ("ix_alert_fingerprint", ["fingerprint", "started_ms"]),
        ("ix_alert_counts", ["state", "severity", "family"]),
    ):
        op.create_index(name, "alert", columns)
    firing = sa.text("state = 'firing'")
    op.create_index(
        "ux_alert_open",
        "alert",
        ["fingerprint"],
        unique=True,
        sqlite_where=firing,
        postgresql_where=firing,
    )


def _events() -> None:
    op.create_table(
        "event",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("alert_id", sa.String(36), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("observed_ms", sa.BigInteger, nullable=False),
        sa.Column("received_ms", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.UniqueConstraint("alert_id", "seq", "origin", name="uq_event_identity"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "endpoint",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("severity_min", sa.String(16), nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False),
    )


def _deliveries() -> None:
    op.create_table(
        "delivery",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("event_id", _ROW_ID, sa.ForeignKey("event.id"), nullable=False),
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
        sqlite_autoincrement=True,
    )
    op.create_index("ix_delivery_due", "delivery", ["state", "endpoint", "next_at_ms"])
    op.create_index("ix_delivery_order", "delivery", ["endpoint", "alert_id", "id"])
    op.create_table(
        "attempt",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("delivery_id", _ROW_ID, sa.ForeignKey("delivery.id"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("duration_ms", sa.Integer, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("error", sa.Text),
    )
    op.create_index("ix_attempt_delivery", "attempt", ["delivery_id", "number"])
