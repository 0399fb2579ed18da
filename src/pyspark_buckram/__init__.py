"""Where PySpark looks for data sources: it imports every top-level `pyspark_*` module and takes its DefaultSource.

Imported in every planner and worker process, so it stays light. The source itself is buckram.spark.data_source.
"""

from buckram.extras import needed_for

with needed_for("pyspark_buckram", "spark"):
    from buckram.spark.data_source import BuckramDataSource as DefaultSource

__all__ = ["DefaultSource"]
