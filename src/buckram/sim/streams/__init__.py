"""Streams in the simulator: lives of writers, readers, janitors and bulk steps, judged by what a stream promises.

    python -m buckram.sim --streams --seeds 0:2000     lives
    python -m buckram.sim --streams --mutants          planted bugs of the stream layer
    python -m buckram.sim --streams --crash-points     a crash (and a lost reply) at every step of each operation

The machines, the network, the disks and the metadata stores are those of the ledger simulator (buckram.sim); its faults
are used as they are. Here are: `plan` (a life drawn from its seed), the actors (`writing`, `producing`, `reading`,
`tending`, `bulking`), `ending`, `life`; what is known (`facts`, `heads`) and what must hold (`rules`, `finals`,
`names`); directed schedules (`script`, `scenarios`), exhaustive crashes (`crashing`) and `mutants`.
"""
