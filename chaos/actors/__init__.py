"""Programs that use a cluster while it suffers, each in a process of its own: `python -m buckram.chaos.actors`."""
