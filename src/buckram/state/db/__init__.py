"""SQL databases on the log: SQLite as the table engine, and every commit in the log before it is anywhere else.

`ns.database("main")` gives a `Database` (`state/db/database.py`). docs/tutorial/database.md shows its use,
docs/explanation/databases-design.md how databases work. Not here: what programs import as `buckram.db`.
"""
