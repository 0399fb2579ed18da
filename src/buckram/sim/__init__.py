"""The simulator: whole clusters on one seeded, virtual-time event loop, judged by the protocol's invariants.

    python -m buckram.sim --seeds 0:2000            two thousand lives; the last line is JSON
    python -m buckram.sim --seed 17 --trace         one life, line by line
    python -m buckram.sim --mutants                 every planted bug must be caught

Production code of client, bookie and metadata runs unmodified behind the seams. The map:

* `loop`: time, processes that pause and die, one scheduler. `network` with `transport`, `disk`, `metadata`: the seams
  and what can go wrong in them. `world` puts them together: hosts, processes, devices.
* `plan` draws a life from its seed; `workload/` is what clients do, `faults` (with `damage` and `liar`) what goes
  wrong, `ending` heals, recovers, reads in full; `cluster` is one life, `swarm` many.
* `checkers/`: `wire` and `facts` are what is known, `judge` passes events on, the others hold the rules
  (docs/reference/protocol.md, 6).
* `scenarios/`: directed schedules. `mutants/`: planted bugs and the hunt for them.

A life is a function of its seed: nothing here or in the code under test may look at clocks, addresses or hash orders.
"""
