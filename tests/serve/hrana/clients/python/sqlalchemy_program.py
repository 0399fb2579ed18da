"""What a program with SQLAlchemy and sqlalchemy-libsql does."""

import json
import sys

import sqlalchemy as sa

engine = sa.create_engine(f"sqlite+libsql://{sys.argv[1].removeprefix('http://')}")
table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("s", sa.String))
with engine.begin() as connection:
    table.metadata.create_all(connection)
    connection.execute(table.insert(), [{"s": "a"}, {"s": "b"}])
with engine.connect() as connection:
    connection.execute(table.insert(), {"s": "c"})
    connection.rollback()
    rows = [list(row) for row in connection.execute(sa.select(table).order_by(table.c.id))]
print(json.dumps({"rows": rows}))
