"""Each command that operates a cluster is killed before each of its changes, and afterwards works, or says what does.

`make test` has a few changes of each command on SQLite, others with each commit; `make soak CHECKS=kills` has all of
them on each store. `python -m tests.kills COMMAND --at N` repeats one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kills.__main__ import change_at, replay
from tests.kills.commands import COMMANDS
from tests.kills.harness import killed, undisturbed
from tests.kills.world import STORES, World, server
from tests.support.soak import soak, some_of

from buckram.errors import ConfigError

USUAL = 2
"""So many of the changes of a command are a death; soaks have all of them."""


@pytest.fixture(scope="module", params=soak(STORES, STORES[:1]))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kills")
    try:
        with server(request.param, folder) as store:
            made = World(folder, store)
            try:
                yield made
            finally:
                made.close()
    except ConfigError as error:
        pytest.skip(f"needs a real {request.param}: {error}")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_died_is_given_again(world: World, name: str) -> None:
    changes = undisturbed(COMMANDS[name](world)).changes
    for at in some_of(range(1, len(changes) + 2), USUAL):
        try:
            killed(COMMANDS[name](world), at)
        except Exception as error:
            where = f"{name}, killed before change {at}, {change_at(changes, at)}"
            raise AssertionError(f"{where}: {error!r}\n{replay(name, world.store.kind, at)}") from error
