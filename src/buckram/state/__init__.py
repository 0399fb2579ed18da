"""Replicated state on logs: machines, and what is made of them, objects and SQL databases."""
