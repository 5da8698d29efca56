"""The tables: kernels, workloads, measurements, and what the database knows about itself.

The schema that users have is made by the numbered migrations; a test holds these classes equal to
what the migrations make. There is no table of decisions: a decision is a query over measurements.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# Version that this code reads and writes: the number of the newest migration. Kept here so that
# opening a database of this version needs no alembic (a quarter of a second to import).
SCHEMA_VERSION = "0001"
VERSION_TABLE = "vibegemm_schema"


class Base(DeclarativeBase):
    """Base of the tables; constraints have fixed names, so that migrations can speak of them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class MetaRecord(Base):
    """A fact about the database itself, e.g. which shipped schedules were merged into it."""

    __tablename__ = "meta"

    key: Mapped[str] = mapped_column(String, primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class KernelRecord(Base):
    """A kernel: source and plan, named by their hash."""

    __tablename__ = "kernel"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String, index=True)
    source: Mapped[str] = mapped_column(Text)
    plan: Mapped[str] = mapped_column(Text)
    origin: Mapped[str] = mapped_column(String)
    added: Mapped[str] = mapped_column(String, server_default=text("CURRENT_TIMESTAMP"))


class KernelArchRecord(Base):
    """An architecture that a kernel is written for."""

    __tablename__ = "kernel_arch"

    arch: Mapped[str] = mapped_column(String, primary_key=True)
    kernel: Mapped[str] = mapped_column(
        ForeignKey("kernel.hash", ondelete="CASCADE"), primary_key=True, index=True
    )


class WorkloadRecord(Base):
    """A workload by its key, taken apart so that queries can look for near ones.

    ``family`` is the key with M left open: what a site with dynamic M is served from.
    """

    __tablename__ = "workload"

    key: Mapped[str] = mapped_column(String, primary_key=True)
    family: Mapped[str] = mapped_column(String, index=True)
    m: Mapped[int | None] = mapped_column(Integer)
    n: Mapped[int] = mapped_column(Integer)
    k: Mapped[int] = mapped_column(Integer)
    batch: Mapped[int] = mapped_column(Integer)
    types: Mapped[str] = mapped_column(String)
    layout: Mapped[str] = mapped_column(String(2))


class MeasurementRecord(Base):
    """A :class:`~.measurement.Measurement`; the objects are kept as canonical JSON."""

    __tablename__ = "measurement"
    __table_args__ = (
        CheckConstraint("(subject = 'kernel') = (kernel IS NOT NULL)", name="kernel"),
        # The decision's query, "all that was accepted at this workload on this architecture, by
        # device and run", is one range of this index.
        Index("ix_measurement_decision", "workload", "arch", "verdict", "device", "run"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    workload: Mapped[str] = mapped_column(ForeignKey("workload.key"))
    arch: Mapped[str] = mapped_column(String)
    device: Mapped[str] = mapped_column(String)
    subject: Mapped[str] = mapped_column(String)
    kernel: Mapped[str | None] = mapped_column(ForeignKey("kernel.hash"), index=True)
    tunables: Mapped[str] = mapped_column(Text)
    run: Mapped[str] = mapped_column(String, index=True)
    verdict: Mapped[str] = mapped_column(String)
    median_us: Mapped[float | None] = mapped_column(Float)
    low_us: Mapped[float | None] = mapped_column(Float)
    high_us: Mapped[float | None] = mapped_column(Float)
    evidence: Mapped[str] = mapped_column(Text)
    added: Mapped[str] = mapped_column(String, server_default=text("CURRENT_TIMESTAMP"))
