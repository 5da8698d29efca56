"""Alembic's environment: migrates the connection that :func:`..upgrade` hands over."""

from __future__ import annotations

from alembic import context

from tvm_vibegemm.database.models import VERSION_TABLE, Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite alters little in place: later migrations rebuild tables
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
