"""Verdict of a run: the actors' histories are compared with the cluster's contents at the end."""
