"""Real clusters under faults: processes, networks, disks and clocks that fail, and a verdict afterwards.

`python -m buckram.chaos` (see __main__). What happens in virtual time is in `sim`; nothing of this is in a wheel.
"""
