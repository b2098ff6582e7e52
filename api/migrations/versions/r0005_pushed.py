"""Alerts that other tools push in, and heartbeats."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their tables."""
    op.create_table(
        "pushed",
        sa.Column("fingerprint", sa.String(36), primary_key=True),
        sa.Column("alert_id", sa.String(36), nullable=False),
        sa.Column("ends_ms", sa.BigInteger, nullable=False),
        sa.Column("over", sa.Boolean, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_pushed_alert", "pushed", ["alert_id"])
    op.create_index("ix_pushed_ends", "pushed", ["over", "ends_ms"])
    op.create_table(
        "heartbeat",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("interval_ms", sa.BigInteger, nullable=False),
        sa.Column("grace_ms", sa.BigInteger, nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("declared", sa.Boolean, nullable=False),
        sa.Column("first_ms", sa.BigInteger, nullable=False),
        sa.Column("last_ms", sa.BigInteger),
        sa.Column("missing_ms", sa.BigInteger),
    )
