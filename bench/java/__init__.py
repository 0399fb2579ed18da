"""Side by side with Apache BookKeeper: `make bench-java`, or `python -m bench.java [ROW...]`.

figures.py is the table (what must hold, what is aimed at) and its verdicts, runs.py the measurements behind it,
sides.py the two clusters, loads.py the processes that load them (src/ is Apache's client, ours.py ours), state.py what
is measured already, report.py and plots.py what is shown. Finding and compiling Java is javakit's.
"""
