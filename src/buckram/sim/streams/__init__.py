"""Streams in the simulator: lives of writers, readers, janitors and bulk steps, judged by what a stream promises.

    python -m buckram.sim --streams --seeds 0:2000     lives
    python -m buckram.sim --streams --mutants          planted bugs of the stream layer
    python -m buckram.sim --streams --crash-points     a crash (and a lost reply) at every step of each operation

Machines, network, disks and metadata stores come from `sim/engine`, faults from `sim/engine/faults`, to which
`faults` adds some of its own. `plan` draws a life from its seed; `writing`, `reading`, `tending` and `bulking` are the
actors; `life` is one life and `ending` its end. `facts` and `heads` record what is known, `rules` and `finals` check it
against the invariants in `names`. `bench`, `scenarios`, `breaking`, `slow_bookies` and `wrong_clocks` are directed
schedules; `crashing` crashes each operation of `operations` at every step; `mutants` are planted bugs.
"""
