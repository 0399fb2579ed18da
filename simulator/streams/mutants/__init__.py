"""Bugs planted in the stream layer, to show that the invariants catch them. `base` defines what a mutant is,
`hunt` runs them; `writing`, `reading`, `keeping`, `compacting` and `forking` contain them by what they break.
"""
