"""Where PySpark finds the data source `buckram.db`, as it finds `buckram` in pyspark_buckram.

Imported in every planner and worker process, so it stays light. The source itself is buckram.spark.db_source.
"""

from buckram.spark.db_source import DatabaseDataSource as DefaultSource

__all__ = ["DefaultSource"]
