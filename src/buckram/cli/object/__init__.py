"""`buckram object`, and what Spark keeps as objects (`checkpoint`, `spark-conf`); imports cli/shared only."""
