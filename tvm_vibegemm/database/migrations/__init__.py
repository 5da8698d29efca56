"""Brings a database to the current schema: numbered migrations, run from the package."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection


def upgrade(connection: Connection) -> None:
    """Run the migrations that a database lacks, inside the caller's transaction.

    Parameters
    ----------
    connection
        With a transaction begun: SQLite's DDL is transactional, so a process that dies half-way
        leaves the old schema, whole.
    """
    # Here, not above: alembic takes a quarter of a second to import, and is needed only once in
    # the life of a database.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
