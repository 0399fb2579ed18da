"""Jobs on Spark, one module each; what programs import is `buckram.jobs`."""
