"""`buckram bookie`: a bookie as a process, what an operator requests of one, and its decommissioning.

It imports cli/shared and, when a bookie runs, the audit writer of cli/security.
"""
