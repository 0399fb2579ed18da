"""Streams in the simulator: lives of writers, readers, janitors and bulk steps, checked against their guarantees.

    python -m buckram.sim --streams --seeds 0:2000     lives
    python -m buckram.sim --streams --mutants          planted bugs of the stream layer
    python -m buckram.sim --streams --crash-points     a crash (and a lost reply) at every step of each operation

Machines, network, disks and metadata stores come from `simulator/engine`, and most faults from
`simulator/engine/faults`; `faults` adds those of streams. `plan` draws a life from its seed; `writing` with
`recording`, `reading`, `maintenance` and `bulk_publishing` are the actors; `life` is one life, `ending` with `auditing`
its end. `facts` is what is known, `rules`, `heads` and `final_checks` check it against the invariants in `names`.
`bench`, `scenarios`, `broken_ledgers`, `slow_bookies` and `wrong_clocks` are directed schedules; `crashing` crashes
each operation of `operations` at every step; `mutants/` are planted bugs.
"""
