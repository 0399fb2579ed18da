"""Jobs on Spark, one module each. Programs import them from `buckram.jobs`."""
