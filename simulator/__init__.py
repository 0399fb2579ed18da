"""The simulator: whole clusters on one seeded, virtual-time event loop, judged by the protocol's invariants.

    python -m buckram.sim --seeds 0:2000            two thousand lives; the last line is JSON
    python -m buckram.sim --seed 17 --trace         one life, line by line
    python -m buckram.sim --mutants                 every planted bug must be caught

Production code of client, bookie and metadata runs unmodified behind the seams. The map:

* `engine/`: what every life runs in. `loop` is time, processes that pause and die, one scheduler; `network` with
  `transport`, `disk`, `metadata` and `zookeeper` are the seams and what can go wrong in them; `world` puts them
  together as hosts, processes and devices; `plan` draws a cluster and its faults from a seed, `faults/` is what goes
  wrong; `checkers/` hold the protocol's rules (docs/reference/protocol.md, 6); `lives` and `swarm` sum up many lives,
  `subject` is all that they ask of a subject, `planned` what subjects have in common; `schedules` runs directed
  schedules; `planting` and `edits` put bugs into production code, and `hunting` counts what catches them.
* `ledgers/`: lives of ledgers. `workload/` is what clients do, `ending` heals, recovers and reads in full, `life` is
  one life; `scenarios/` are directed schedules, `mutants/` planted bugs.
* `streams/`: the same for streams. It uses the engine only, and nothing of `ledgers/`.

A life is a function of its seed: nothing here or in the code under test may look at clocks, addresses or hash orders.
"""
