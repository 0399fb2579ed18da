"""Archives in the simulator: lives of what becomes of streams' records later on: forks, history, exports, imports,
compaction, retention, and streams made anew under a name.

    python -m buckram.sim --archives --seeds 0:2000

`place` is the file system outside the cluster. `model` is what must be true of every stream, fork and file, and
`watching` compares each change of the metadata with it; `stage` judges what is acknowledged and read, `files` what is
in the place. The actors are in `writing`, `reading`, `forking`, `moving` (offload, export, compaction), `bringing`
(import, bulk steps) and `removing` (truncation, deletion, the janitor). Streams themselves, with producers,
transactions and hostile tenants, are `simulator/streams`.
"""
