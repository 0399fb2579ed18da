"""`buckram bookie`: a bookie as a process, what an operator requests of one, and its decommissioning; imports
cli/shared and, when it runs, the audit writer of cli/security.
"""
