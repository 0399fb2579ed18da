"""The command line as an application: help in groups, summaries, versions, and what a start imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from buckram.cli.app import GROUPS, NOUNS, app, run
from buckram.extras import missing

HEAVY = {
    "asyncio",
    "google.protobuf",
    "kazoo",
    "prometheus_client",
    "rich",
    "sqlite3",
    "ssl",
    "uvloop",
    "buckram.client.ledger_client",
    "buckram.config",
    "buckram.errors",
    "buckram.types",
}
"""What no start needs that only shows something."""


def groups(command: click.Command, context: click.Context) -> Iterator[tuple[click.Group, click.Context]]:
    if isinstance(command, click.Group):
        yield command, context
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from groups(inner, click.Context(inner, info_name=name, parent=context))


@pytest.mark.parametrize("width", [80, 100])
def test_each_command_has_a_summary_of_one_line_that_is_not_cut(width: int) -> None:
    root = app.make_context("buckram", ["version"], terminal_width=width - 2)
    seen = 0
    for group, context in groups(app, root):
        lines = group.get_help(context).splitlines()
        if context.parent is None:
            assert max(map(len, lines)) <= width
        for name in group.list_commands(context):
            inner = group.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                shown = [line for line in lines if line.split()[:1] == [name] and line.startswith("  ")]
                said = inner.get_short_help_str(1000)
                assert any(line.rstrip(".").endswith(said.rstrip(".")) for line in shown), (
                    f"{context.command_path} {name}: the first sentence is too long for {width} columns: {said}"
                )
                seen += 1
    assert seen > 150


def test_summaries_of_nouns_are_those_of_their_docstrings() -> None:
    context = click.Context(app, info_name="buckram")
    said = {}
    for name in NOUNS:
        command = app.get_command(context, name)
        assert command is not None
        said[name] = command.get_short_help_str(1000).rstrip(".")
        assert command.name == name
    assert said == {name: noun.summary for name, noun in NOUNS.items()}


def test_help_has_every_noun_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(GROUPS) == ["Data", "Operate", "Secure", "Move", "Tools"]
    assert sum(map(len, GROUPS.values())) == len(NOUNS)
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [line[:-1] for line in shown.splitlines() if line[:-1] in GROUPS] == list(GROUPS)


@pytest.mark.parametrize("words", [[], ["stream"], ["stream", "write"], ["placement", "topology", "set"]])
def test_help_is_the_same_as_the_option(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    expected = capsys.readouterr().out
    assert run(["help", *words]) == 0
    assert capsys.readouterr().out == expected
    assert expected.startswith(f"Usage: {' '.join(['buckram', *words])} [OPTIONS]")


def test_help_of_nothing_known_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "stream", "wrote"]) == 2
    assert "No such command 'wrote'" in capsys.readouterr().err


def test_version_tells_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-V"]) == 0
    short = capsys.readouterr().out.strip()
    assert run(["version"]) == 0
    assert capsys.readouterr().out.startswith(short)
    assert run(["version", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["version", "compiled", "python", "missing_extras"]
    assert shown["version"] in short
    assert shown["python"].split()[1] == ".".join(map(str, sys.version_info[:3]))
    assert shown["missing_extras"] == [
        {"extra": one.name, "brings": one.brings, "install": f"pip install 'buckram[{one.name}]'"} for one in missing()
    ]


@pytest.mark.parametrize("words", [["--help"], []])
def test_help_points_to_the_missing_extras(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("buckram.extras.MODULES", {"no_such_thing": "db"})
    run(words)
    said = capsys.readouterr()
    assert "`buckram version`" in (said.out + said.err).rstrip().splitlines()[-1]
    monkeypatch.setattr("buckram.extras.MODULES", {"click": "db"})
    run(words)
    said = capsys.readouterr()
    assert "not installed" not in said.out + said.err


def imported(*words: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import atexit, os, sys\n"
        "said = os.dup(2)\n"
        "atexit.register(lambda: os.write(said, ' '.join(sys.modules).encode()))\n"
        f"sys.argv = ['buckram', *{list(words)!r}]\n"
        "from buckram.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--help"], ["help"]])
def test_help_imports_little(words: list[str]) -> None:
    found = imported(*words)
    assert "buckram.cli.app" in found
    assert not found & HEAVY
    nouns = {noun.place.partition(":")[0] for name, noun in NOUNS.items() if name != "help"}
    assert not found & nouns


@pytest.mark.parametrize("words", [["stream", "list", "--long"], ["status"]])
def test_a_command_imports_no_library_that_it_does_not_use(words: list[str]) -> None:
    found = imported(*words, "--metadata", "sqlite:////missing/metadata.db")
    assert "buckram.client.ledger_client" in found
    assert not found & {"rich", "kazoo", "prometheus_client", "opentelemetry", "pyarrow", "apsw", "cryptography", "jwt"}


def test_a_command_imports_no_repair_and_no_writer_that_it_does_not_use() -> None:
    found = imported("status", "--metadata", "sqlite:////missing/metadata.db")
    assert not found & {"buckram.client.maintain.repair", "buckram.client.write.engine", "buckram.streams.namespace"}


@pytest.mark.parametrize(
    ("words", "meant"), [(["strem", "list"], "stream"), (["stream", "wrte"], "write"), (["help", "legder"], "ledger")]
)
def test_a_misspelt_command_names_the_one_that_was_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err
