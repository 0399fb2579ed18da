"""The real world, behind the protocols of `seams.py`: sockets, files, clocks, logs of processes, traces."""
