"""Lifecycle, silences, routes, keys, audit, idempotency, beside what the first version made."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add columns with defaults, so that rows of older versions stay true."""
    _alert_columns()
    _add("event", sa.Column("type", sa.String(32), nullable=False, server_default="updated"))
    _add("event", sa.Column("actor", sa.Text, nullable=False, server_default="detector"))
    _add("event", sa.Column("detail", sa.Text))
    _add("delivery", sa.Column("kind", sa.String(32), nullable=False, server_default="fired"))
    _add("delivery", sa.Column("group_key", sa.Text, nullable=False, server_default=""))
    _add("delivery", sa.Column("note", sa.Text))
    op.create_table(
        "series",
        sa.Column("alert_id", sa.String(36), primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    _silences()
    _security()
    op.create_table(
        "routing",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("tree", sa.Text, nullable=False),
        sa.Column("updated_by", sa.Text, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
    )


def _add(table: str, column: sa.Column[Any]) -> None:  # of any type
    op.add_column(table, column)


def _alert_columns() -> None:
    for column in (
        sa.Column("version", sa.BigInteger, nullable=False, server_default="1"),
        sa.Column("changed_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("rack", sa.Text),
        sa.Column("cluster", sa.Text),
        sa.Column("project", sa.Text),
        sa.Column("caused_by", sa.String(36)),
        sa.Column("acked_by", sa.Text),
        sa.Column("acked_ms", sa.BigInteger),
        sa.Column("ack_until_ms", sa.BigInteger),
        sa.Column("ack_rank", sa.Integer),
        sa.Column("assignee", sa.Text),
        sa.Column("feedback", sa.String(32)),
        sa.Column("stale_ms", sa.BigInteger),
        sa.Column("stale_by", sa.String(36)),
        sa.Column("flapping_ms", sa.BigInteger),
        sa.Column("snoozed_until_ms", sa.BigInteger),
        sa.Column("reopens", sa.Integer, nullable=False, server_default="0"),
        sa.Column("closed_rank", sa.Integer),
        sa.Column("remind_ms", sa.BigInteger),
    ):
        _add("alert", column)
    op.drop_index("ux_alert_open", table_name="alert")
    is_open = sa.text("state <> 'resolved'")
    for name, columns, unique in (
        ("ux_alert_open", ["fingerprint"], True),
        ("ix_alert_open", ["started_ms", "alert_id"], False),
        ("ix_alert_open_node", ["node"], False),
    ):
        op.create_index(
            name,
            "alert",
            columns,
            unique=unique,
            sqlite_where=is_open,
            postgresql_where=is_open,
        )
    flaps = sa.text("flapping_ms IS NOT NULL")
    op.create_index(
        "ix_alert_flapping",
        "alert",
        ["fingerprint", "changed_ms"],
        sqlite_where=flaps,
        postgresql_where=flaps,
    )
    op.execute("UPDATE alert SET changed_ms = received_ms")
    op.create_index("ix_alert_changed", "alert", ["changed_ms"])
    op.create_index("ix_alert_job", "alert", ["job", "started_ms"])


def _silences() -> None:
    op.create_table(
        "silence",
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
    )
    op.create_index("ix_silence_ends", "silence", ["ends_ms"])


def _security() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger),
        sa.Column("revoked_ms", sa.BigInteger),
        sa.Column("last_used_ms", sa.BigInteger),
    )
    op.create_table(
        "audit",
        sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("object_type", sa.String(32), nullable=False),
        sa.Column("object_id", sa.Text, nullable=False),
        sa.Column("detail", sa.Text),
        sa.Column("request_id", sa.String(32)),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_object", "audit", ["object_type", "object_id", "id"])
    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(100), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("headers", sa.Text),
        sa.Column("body", sa.LargeBinary),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_idempotency_created", "idempotency", ["created_ms"])
