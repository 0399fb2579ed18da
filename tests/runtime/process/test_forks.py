"""The generation of processes: the same until a fork, another one in the child."""

from __future__ import annotations

import os

from buckram.runtime.process.process_setup import generation


def test_a_child_is_of_another_generation() -> None:
    before = generation()
    child = os.fork()
    if child == 0:
        os._exit(0 if generation() == before + 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert generation() == before
