"""A database as Python programs know one: DB-API 2.0 (`connect`), its async twin, and a dialect of SQLAlchemy.

`buckram.sql.connect(uri, "shop/main")`. `session.py` is one caller's connection, for servers as well.
"""
