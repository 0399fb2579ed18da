"""What a program with libsql does. It blocks all threads while it waits, so it needs a process of its own."""

import json
import sys

import libsql

connection = libsql.connect(database=sys.argv[1], auth_token="any")
connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT UNIQUE, f REAL, b BLOB)")
connection.execute("INSERT INTO t (s, f, b) VALUES (?, ?, ?)", ("é", 1.5, b"\x00\xff"))
connection.commit()
connection.execute("INSERT INTO t (s) VALUES ('b')")
connection.rollback()
try:
    connection.execute("INSERT INTO t (s) VALUES ('é')")
    error = ""
except ValueError as refused:
    error = str(refused)
connection.rollback()
other = libsql.connect(database=sys.argv[1], auth_token="any")
rows = other.execute("SELECT id, s, f, hex(b) FROM t").fetchall()
print(json.dumps({"unique": "UNIQUE constraint failed: t.s" in error, "rows": rows}))
