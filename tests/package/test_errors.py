"""Every error that can reach a user stands in buckram.errors, is exported from buckram and says what it means."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import re
from pathlib import Path

import pytest

import buckram
from buckram import errors

INTERNAL = {
    "MalformedBatch", "UnknownBatchVersion",  # told as CorruptEntry
    "Busy",  # a MetadataUnavailable of the embedded store, retried there
    "LiveMoved", "RunChanged", "SourceChanged",  # a compare-and-set that begins anew
    "BadAvailability",  # a repair asks another bookie
    "StoreError",  # answered over the wire as a code
    "StreamRefusal",  # answered over HTTP as an error of the protocol
    "Elsewhere",  # the gateway sends its client on
    "BadLine", "CursorBackwards", "LineTooLong", "OutputLost", "ProfileFailed",  # the command line's own
}  # fmt: skip


NOT_OF_A_CALL = {
    "BuckramError", "DatabaseError", "LedgerError", "MachineError",  # branches
    "MetadataError", "ObjectError", "StreamError",
    "BookieIOError", "BookieReadOnly", "BookieTooBusy", "BookieUnavailable", "ProtocolError", "RequestTimeout",
    "UnknownLedgerState", "WrongBookie",  # a force may end with one: its docstring says BookieError
    "KeyExists", "KeyNotEmpty", "NoSuchKey", "ValueTooLarge", "VersionConflict",  # of key stores (seams.py)
    "AlreadyRegistered", "CorruptStore", "MalformedSource", "WrongCookie", "NoSuchBookie",  # of bookies and commands
    "ReplicationRefused", "SourceUnavailable", "SourceWentBack",  # of commands and jobs
    "ChildFailed", "ForeignDirectory", "PortInUse", "EtcdFailed", "ZooKeeperFailed",  # of processes of a program
}  # fmt: skip
"""Errors that no docstring of docs/reference/api.md has to name."""


OPTIONAL = {"pyspark", "pyarrow"}
"""Not part of a small set-up: the modules that need them define no errors of users."""


def every_error() -> dict[str, type]:
    for module in pkgutil.walk_packages(buckram.__path__, "buckram."):
        if not module.name.startswith(("buckram.sim", "buckram.chaos")) and not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name not in OPTIONAL:
                    raise
    found: dict[str, type] = {}

    def walk(cls: type) -> None:
        for child in cls.__subclasses__():
            if child.__module__.startswith("buckram."):
                found[child.__name__] = child
            walk(child)

    walk(errors.BuckramError)
    return found


def test_every_error_stands_in_errors_and_is_exported() -> None:
    for name, cls in every_error().items():
        if name not in INTERNAL:
            assert getattr(errors, name, None) is cls, f"{cls.__module__}.{name} does not stand in buckram.errors"
            assert name in errors.__all__
            assert getattr(buckram, name, None) is cls, f"{name} is not exported from buckram"
            assert name in buckram.__all__


@pytest.mark.parametrize("name", [name for name in errors.__all__ if inspect.isclass(getattr(errors, name))])
def test_every_error_says_what_it_means(name: str) -> None:
    cls = getattr(errors, name)
    assert cls.__doc__
    assert cls.__doc__ != getattr(cls.__base__, "__doc__", None)


def test_every_error_is_named_by_a_call_that_raises_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
    titles = {name for name, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.BuckramError)}
    sections = [part.partition("\n") for part in page.split("\n### ")[1:]]
    said = "\n".join(text for title, _, text in sections if title.split()[0] not in titles)
    exported = titles & set(buckram.__all__)
    assert exported >= NOT_OF_A_CALL
    assert {name for name in exported - NOT_OF_A_CALL if not re.search(rf"\b{name}\b", said)} == set()


async def test_connecting_without_a_cluster_raises_an_exported_error(tmp_path: object) -> None:
    with pytest.raises(buckram.ClusterNotInitialised, match="buckram up"):
        await buckram.connect(f"sqlite://{tmp_path}/nothing.db")


def test_errors_name_the_public_module_and_can_be_pickled() -> None:
    assert errors.NoSuchLedger.__module__ == errors.StreamError.__module__ == "buckram.errors"
    for error in (errors.NoSuchLedger(3), errors.NotEnoughBookies(3, 1), errors.ConfigError("no")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_what_is_no_ledger_has_no_number() -> None:
    assert str(buckram.ReadFailed(-1, "history at /srv is away")) == "history at /srv is away"
    assert str(buckram.ReadFailed(0, "no copy")) == "ledger 0: no copy"
