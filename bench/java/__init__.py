"""Side by side with Apache BookKeeper: `make bench-java`, or `python -m bench.java [ROW...]`.

figures.py is the table (required values, aims) and its verdicts, runs.py the measurements behind it, sides.py the two
clusters, loads.py the processes that load them (src/ is Apache's client, ours.py ours), state.py the finished
measurements, report.py and plots.py the output. Finding and compiling Java is javakit's.
"""
