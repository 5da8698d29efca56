"""The migrations make what the mapped classes say, whole or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tvm_vibegemm.database import Database, kernel_text_hash, migrations
from tvm_vibegemm.database.models import SCHEMA_VERSION, VERSION_TABLE, Base
from tvm_vibegemm.errors import DatabaseError

from .conftest import KEY, measured


def test_newest_migration_is_the_version_of_the_code() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA_VERSION]


def test_migrations_make_the_tables_of_the_classes(db: Database) -> None:
    with db._reading() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, Base.metadata) == []
        rows = connection.execute(text("SELECT sql FROM sqlite_master WHERE name='measurement'"))
        made = str(rows.scalar())
    assert "CONSTRAINT ck_measurement_kernel CHECK" in made
    assert made.count("FOREIGN KEY") == 2


def test_migration_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = migrations.upgrade

    def fails(connection: object) -> None:
        real(connection)  # type: ignore[arg-type]
        raise DatabaseError("power cut")

    monkeypatch.setattr(migrations, "upgrade", fails)
    with pytest.raises(DatabaseError, match="power cut"):
        Database(path)
    assert path.stat().st_size == 0
    monkeypatch.undo()
    with Database(path) as db:
        assert db.measurements() == []


def test_database_of_the_first_version_is_taken_over_whole(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.executescript((Path(__file__).parent / "schema_0001.sql").read_text())
    raw.close()
    with Database(path) as db:
        (kernel,) = db.kernels("sm_90")
        assert kernel.hash == kernel_text_hash(kernel.source, kernel.plan_json)
        assert db.meta("schedules:0") == "1"
        assert set(db.measurements()) == {
            measured(kernel.hash),
            measured(),
            measured(
                kernel.hash,
                run="run-2",
                verdict="wrong at (0, 7)",
                median_us=None,
                low_us=None,
                high_us=None,
            ),
            measured(workload=KEY.replace("m16", "m*")),
        }
