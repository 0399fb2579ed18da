"""Where PySpark finds the data source `buckram.db`, as it finds `buckram` in pyspark_buckram.

Imported in every planner and worker process, so it stays light. The source itself is
buckram.spark.databases.data_source.
"""

from buckram.extras import needed_for

with needed_for("pyspark_buckram_db", "spark"):
    from buckram.spark.databases.data_source import DatabaseDataSource as DefaultSource

__all__ = ["DefaultSource"]
