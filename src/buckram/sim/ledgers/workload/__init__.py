"""What clients do in a life: write, read, tail, recover, delete, repair, attack. Every result goes to the judge.

An actor is a coroutine of the harness that runs pieces of application code inside a client's process; the process may
die under it at any moment (world.Died). Waiting for the end and what must hold then is sim/ledgers/ending.
"""
