"""Pickles of public values and classes that the release before wrote are read, wherever the modules are now."""

from __future__ import annotations

import base64
import importlib
import json
import pickle
import sys
from pathlib import Path

import pytest

import buckram
from buckram import pickles
from buckram.core.streams.metadata.purposes import Purpose

PICKLES: dict[str, str] = json.loads((Path(__file__).parents[1] / "formats/0.2/pickles.json").read_text())


@pytest.mark.parametrize("what", sorted(PICKLES))
def test_a_pickle_of_the_release_before_is_read(what: str) -> None:
    kind, _, name = what.partition(" ")
    module, _, attribute = name.partition(":")
    found = pickle.loads(base64.b64decode(PICKLES[what]))
    today = getattr(importlib.import_module(module), attribute)
    assert (found if kind == "class" else type(found)) is today
    again = pickle.loads(pickle.dumps(found))
    assert again is found if kind == "class" else again == found


def test_fields_that_came_later_are_not_filled_with_those_that_stood_there() -> None:
    """A state that dataclasses makes is a list in the order of fields."""
    config = pickle.loads(base64.b64decode(PICKLES["value buckram:ClientConfig"]))
    assert config == buckram.ClientConfig()
    info = pickle.loads(base64.b64decode(PICKLES["value buckram:StreamInfo"]))
    assert (info.fork, info.purpose) == (None, Purpose.RECORDS)
    later = config.__getstate__()
    del later["join_segments"]
    assert pickle.loads(pickle.dumps(config)) == config
    config.__setstate__(later)
    assert config == buckram.ClientConfig()


def test_no_module_of_today_is_hidden_and_each_new_one_is_there() -> None:
    finders = [one for one in sys.meta_path if one is not pickles.MovedModules]
    for old, new in pickles.MOVED.items():
        parent = importlib.import_module(old.rpartition(".")[0])
        assert not any(one.find_spec(old, parent.__path__, None) for one in finders), old
        if new:
            importlib.import_module(new)


def test_what_a_moved_module_never_had_is_an_error_as_ever() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("buckram.objects.nothing")
    with pytest.raises(AttributeError, match="nothing"):
        importlib.import_module("buckram.objects.values").nothing  # noqa: B018
    assert buckram.__name__ not in pickles.MOVED
