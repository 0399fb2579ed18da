"""The clients of a life: they write, read, tail, recover, delete, repair and attack. The judge gets every result.

An actor is a coroutine of the simulator that runs application code inside a client's process. The process may die at
any moment, which the actor sees as `world.Died`.

Not here: waiting for the end of a life, and what must hold then (`simulator/ledgers/ending.py`).
"""
