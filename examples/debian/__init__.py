"""The main job: real records of this Debian machine into streams, a bookie killed meanwhile, and a Spark report.

`make run`, or `python -m examples.debian`. inputs.py finds the records, load.py writes them, report.py is the
Spark job, __main__.py runs the whole and prints.
"""
