"""The dialect of SQLAlchemy: engines, sessions, isolation, savepoints, pandas, Alembic, and a share of its own suite.

The whole suite is `python -m tests.sql.compliance`, which `make soak` runs.
"""

from __future__ import annotations

import io
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import buckram.sql
import buckram.sync
from buckram.testing import ThreadedCluster

sa: Any = pytest.importorskip("sqlalchemy", reason="needs the package sqlalchemy")
from sqlalchemy import orm  # noqa: E402
from sqlalchemy.dialects import registry  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    registry.register("buckram", "buckram.sql.dialect", "BuckramDialect")
    with ThreadedCluster(bookies=3) as cluster:
        with buckram.sync.connect(cluster.uri) as client:
            client.namespaces.create("shop")
        yield cluster.uri
        buckram.sql.close_all()


@pytest.fixture
def engine(uri: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    made = sa.create_engine(f"buckram:///shop/{request.node.name[5:30]}?metadata={uri}")
    yield made
    made.dispose()


class Base(orm.DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "item"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(unique=True)
    made: orm.Mapped[Any] = orm.mapped_column(sa.DateTime)


def test_an_orm_with_transactions_and_savepoints(engine: Any) -> None:
    import datetime

    moment = datetime.datetime(2026, 1, 2, 3, 4, 5)
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add_all([Item(name="bolt", made=moment), Item(name="nut", made=moment)])
        session.commit()
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.execute(sa.insert(Item).values(name="nut", made=moment))
        session.add(Item(name="cog", made=moment))
        session.commit()
        session.add(Item(name="rod", made=moment))
        session.rollback()
        assert session.scalars(sa.select(Item.name).order_by(Item.id)).all() == ["bolt", "nut", "cog"]
        assert session.get(Item, 1).made == moment
    assert sa.inspect(engine).get_unique_constraints("item") == [{"column_names": ["name"], "name": None}]


def test_isolation_levels(engine: Any) -> None:
    with engine.connect() as connection:
        assert connection.get_isolation_level() == "READ COMMITTED"
        connection.execute(sa.text("SELECT 1"))
        assert not connection.connection.in_transaction
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        connection.execute(sa.text("SELECT 1"))
        assert connection.connection.in_transaction
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("CREATE TABLE t (x)"))
        assert not connection.connection.in_transaction
    with engine.connect() as connection:
        assert connection.get_isolation_level() == "READ COMMITTED"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("buckram://host/shop/main", "three slashes and no host"),
        ("buckram://", "three slashes and no host"),
        ("buckram:///shop/main?colour=red", "'colour' is none of the options metadata"),
        ("buckram:///shop/main?at_most_s=soon", "could not convert"),
    ],
)
def test_what_is_no_url_is_refused(uri: str, url: str, reason: str) -> None:
    with pytest.raises(sa.exc.ArgumentError, match=reason):
        sa.create_engine(url).connect()


def test_sqlalchemy_finds_the_dialect_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["sqlalchemy.dialects"]["buckram"].partition(":")
    registry.register("buckram", module, name)
    assert sa.make_url("buckram:///shop/main").get_dialect().driver == "buckram"


def test_pandas_writes_and_reads_a_table(engine: Any) -> None:
    pandas: Any = pytest.importorskip("pandas", reason="needs the package pandas")
    frame = pandas.DataFrame({"n": [1, 2, 3], "f": [0.5, None, 1.5], "s": ["a", "é", None]})
    frame.to_sql("frame", engine, index=False)
    frame.to_sql("frame", engine, index=False, if_exists="append")
    found = pandas.read_sql("SELECT * FROM frame WHERE n > ?", engine, params=(1,))
    pandas.testing.assert_frame_equal(found, pandas.concat([frame[1:]] * 2, ignore_index=True))
    assert pandas.read_sql_table("frame", engine).shape == (6, 3)


def test_alembic_migrates_there_and_back(engine: Any, tmp_path: Path) -> None:
    pytest.importorskip("alembic", reason="needs the package alembic")
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(
        "from alembic import context\n"
        "with context.config.attributes['engine'].connect() as connection:\n"
        "    context.configure(connection=connection, render_as_batch=True)\n"
        "    with context.begin_transaction():\n"
        "        context.run_migrations()\n"
    )
    (tmp_path / "versions" / "one.py").write_text(
        "import sqlalchemy as sa\n"
        "from alembic import op\n"
        "revision, down_revision = 'one', None\n"
        "def upgrade():\n"
        "    op.create_table('item', sa.Column('id', sa.Integer, primary_key=True), sa.Column('name', sa.String))\n"
        "    op.bulk_insert(sa.table('item', sa.column('name')), [{'name': 'bolt'}])\n"
        "def downgrade():\n"
        "    op.drop_table('item')\n"
    )
    (tmp_path / "versions" / "two.py").write_text(
        "import sqlalchemy as sa\n"
        "from alembic import op\n"
        "revision, down_revision = 'two', 'one'\n"
        "def upgrade():\n"
        "    with op.batch_alter_table('item') as item:\n"
        "        item.alter_column('name', nullable=False)\n"
        "        item.add_column(sa.Column('size', sa.Float))\n"
        "def downgrade():\n"
        "    with op.batch_alter_table('item') as item:\n"
        "        item.drop_column('size')\n"
        "        item.alter_column('name', nullable=True)\n"
    )
    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(tmp_path))
    config.attributes["engine"] = engine
    command.upgrade(config, "head")
    columns = {column["name"]: column["nullable"] for column in sa.inspect(engine).get_columns("item")}
    assert columns == {"id": False, "name": False, "size": True}
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT * FROM item")).all() == [(1, "bolt", None)]
        wanted = sa.MetaData()
        sa.Table("item", wanted, autoload_with=connection)
        sa.Table("new", wanted, sa.Column("x", sa.Integer))
        context = MigrationContext.configure(connection)
        assert [change[0] for change in compare_metadata(context, wanted)] == ["add_table"]
    command.downgrade(config, "base")
    assert sa.inspect(engine).get_table_names() == ["alembic_version"]


def test_a_share_of_sqlalchemys_own_suite() -> None:
    pytest.importorskip("sqlalchemy.testing.suite", reason="needs the package sqlalchemy with its tests")
    from tests.sql.compliance.__main__ import run

    counts, printed = run("InsertBehavior or SimpleUpdateDelete or IsolationLevel")
    assert counts.get("passed", 0) >= 15, printed[-3000:]
    assert not counts.keys() & {"failed", "error"}, printed[-3000:]


def test_alembic_makes_a_table_anew_that_others_name(engine: Any) -> None:
    pytest.importorskip("alembic", reason="needs the package alembic")
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    with engine.connect() as connection:
        for sql in (
            "CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT)",
            "CREATE TABLE book (id INTEGER PRIMARY KEY, author INTEGER REFERENCES author ON DELETE CASCADE)",
            "INSERT INTO author VALUES (1, 'a')",
            "INSERT INTO book VALUES (10, 1)",
        ):
            connection.exec_driver_sql(sql)
        connection.commit()
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        with Operations(MigrationContext.configure(connection)).batch_alter_table("author", recreate="always") as batch:
            batch.add_column(sa.Column("born", sa.Integer))
        connection.commit()
        assert connection.exec_driver_sql("SELECT * FROM book").fetchall() == [(10, 1)]
        assert connection.exec_driver_sql("SELECT * FROM author").fetchall() == [(1, "a", None)]
        connection.commit()
        with pytest.raises(sa.exc.IntegrityError):
            connection.exec_driver_sql("INSERT INTO book VALUES (20, 2)")
