"""The main job: real records of this Debian machine through a pipeline, with a bookie and the Spark driver killed.

`make run`, or `python -m examples.debian`. inputs.py finds the records, load.py writes them to streams, queries.py
counts them by windows into other streams, report.py checks everything and driver.py is the process in which Spark runs;
plots.py draws, __main__.py runs the whole and prints.
"""
