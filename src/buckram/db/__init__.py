"""SQL databases on the log: SQLite as the table engine, and every commit in the log before it is anywhere else.

`ns.database("main")` gives a `Database` (`db/database.py`). docs/tutorial/database.md shows its use,
docs/explanation/databases-design.md how it works. It needs `pip install 'buckram[db]'`.
"""
