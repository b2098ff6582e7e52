"""Pace of receivers, digests, replays; order of notices by group."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "revision", "upgrade"]

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Give each delivery of an older version its alert as group."""
    op.add_column("delivery", sa.Column("digest", sa.BigInteger))
    op.add_column("delivery", sa.Column("replayed_ms", sa.BigInteger))
    unsure = sa.Column("unsure", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("delivery", unsure)
    op.execute("UPDATE delivery SET group_key = alert_id WHERE group_key = ''")
    op.create_index("ix_delivery_group", "delivery", ["endpoint", "group_key", "id"])
    op.create_index("ix_delivery_digest", "delivery", ["digest"])
    op.create_table(
        "pace",
        sa.Column("endpoint", sa.String(64), primary_key=True),
        sa.Column("tokens", sa.Float),
        sa.Column("tokens_ms", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("probe_ms", sa.BigInteger),
        sa.Column("probes", sa.Integer, nullable=False),
        sa.Column("failing_since_ms", sa.BigInteger),
        sa.Column("digest_ms", sa.BigInteger),
        sa.Column("told_ms", sa.BigInteger),
    )
