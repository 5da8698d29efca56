"""First form: kernels, workloads, measurements, meta."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NOW = sa.text("CURRENT_TIMESTAMP")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
    )
    op.create_table(
        "kernel",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("added", sa.String(), server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_kernel"),
    )
    op.create_index("ix_kernel_name", "kernel", ["name"])
    op.create_table(
        "kernel_arch",
        sa.Column("arch", sa.String(), nullable=False),
        sa.Column("kernel", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("arch", "kernel", name="pk_kernel_arch"),
        sa.ForeignKeyConstraint(
            ["kernel"], ["kernel.hash"], name="fk_kernel_arch_kernel", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_kernel_arch_kernel", "kernel_arch", ["kernel"])
    op.create_table(
        "workload",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("m", sa.Integer(), nullable=True),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.Column("types", sa.String(), nullable=False),
        sa.Column("layout", sa.String(2), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_workload"),
    )
    op.create_index("ix_workload_family", "workload", ["family"])
    op.create_table(
        "measurement",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("arch", sa.String(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("kernel", sa.String(64), nullable=True),
        sa.Column("tunables", sa.Text(), nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("median_us", sa.Float(), nullable=True),
        sa.Column("low_us", sa.Float(), nullable=True),
        sa.Column("high_us", sa.Float(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("added", sa.String(), server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurement"),
        sa.ForeignKeyConstraint(["workload"], ["workload.key"], name="fk_measurement_workload"),
        sa.ForeignKeyConstraint(["kernel"], ["kernel.hash"], name="fk_measurement_kernel"),
        sa.CheckConstraint(
            "(subject = 'kernel') = (kernel IS NOT NULL)", name=op.f("ck_measurement_kernel")
        ),
    )
    op.create_index(
        "ix_measurement_decision", "measurement", ["workload", "arch", "verdict", "device", "run"]
    )
    op.create_index("ix_measurement_kernel", "measurement", ["kernel"])
    op.create_index("ix_measurement_run", "measurement", ["run"])
