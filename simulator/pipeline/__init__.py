"""Spark's pipelines in the simulator: its micro-batch engine, emulated, drives the real sources and sinks.

    python -m buckram.sim --pipeline --seeds 0:1000     lives
    python -m buckram.sim --pipeline --mutants          planted bugs

Hosts, network, disks and metadata stores come from `simulator/engine`. `bridge` runs the blocking code of Spark's
Python processes; `checkpoint` has the files of a query, `queries` what a user has written, `driver` one run of a query
as MicroBatchExecution does it, `tasks` its executors. `producing` and `operating` are the actors: who writes the
inputs, and who runs the queries, spoils their checkpoints, and does what refusals say. `model` knows what every batch
must have written, and `rules` compare; `mutants` are planted bugs.
"""
