"""`buckram object`, and what Spark keeps as objects (`checkpoint`, `spark-conf`). It imports cli/shared only."""
