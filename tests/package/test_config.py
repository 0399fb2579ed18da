"""Settings: where a value comes from, and what is refused with a line that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buckram.cli.shared.options import read_toml
from buckram.config import load
from buckram.errors import ConfigError
from buckram.runtime.process.process_setup import loop_factory


def test_arguments_override_environment_and_file() -> None:
    file = {"bookie": {"port": 1, "host": "a", "metrics": "f:1"}}
    environment = {"BUCKRAM_BOOKIE_PORT": "2", "BUCKRAM_BOOKIE_HOST": "b", "BUCKRAM_METADATA": "elsewhere"}
    value, sources = load("bookie", file, environment, {"port": 3, "host": None})
    assert (value.port, value.host, value.metrics, value.max_connections) == (3, "b", "f:1", 2000)
    origin = {s.key: s.source for s in sources}
    assert origin["port"] == "argument"
    assert origin["host"] == "environment BUCKRAM_BOOKIE_HOST"
    assert (origin["metrics"], origin["max_connections"]) == ("file", "default")


@pytest.mark.parametrize(
    ("section", "key", "raw", "said"),
    [
        ("bookie", "portt", 1, "unknown key 'portt'"), ("bookie", "port", "x", "needs a whole number"),
        ("bookie", "port", 99999, "needs 0 to 65535"), ("bookie", "port", 1.5, "needs a whole number"),
        ("bookie", "port", True, "needs a whole number"), ("bookie", "host", True, "needs a string"),
        ("store", "reserved_bytes", -1, "must not be negative"), ("net", "max_frame_bytes", 1, "needs 65536 to"),
        ("store", "segment_bytes", 1, "needs at least 1048576"), ("store", "compaction_threshold", 1.5, "needs 0 to 1"),
        ("bookie", "metrics", "foo", "needs HOST:PORT"), ("bookie", "advertise", "h:99999", "needs HOST:PORT"),
        ("store", "disk_mode", "foo", "adaptive, inline, thread"),
        ("client", "wire_protocol", 7, "one of 2, 3"), ("client", "quarantine_s", "nan", "needs a number"),
        ("client", "quarantine_s", float("inf"), "needs a number"), ("client", "idle_lac_ms", -0.5, "negative"),
    ],
)  # fmt: skip
def test_a_bad_value_in_a_file_is_refused(section: str, key: str, raw: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load(section, {section: {key: raw}})
    assert key in str(caught.value)


def test_a_variable_that_is_no_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="BUCKRAM_BOOKIE_PORTT"):
        load("bookie", None, {"BUCKRAM_BOOKIE_PORTT": "1"})
    load("client", None, {"BUCKRAM_BOOKIE_PORTT": "1", "BUCKRAM_LOOP": "asyncio"})
    with pytest.raises(ConfigError, match=r"port = '99999' \(environment BUCKRAM_BOOKIE_PORT\)"):
        load("bookie", None, {"BUCKRAM_BOOKIE_PORT": "99999"})


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[bookie\n"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bookie.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bookie\.toml: not TOML"):
        read_toml(str(path))
    with pytest.raises(ConfigError, match="can be read"):
        read_toml(str(tmp_path))


def test_an_unknown_event_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="BUCKRAM_LOOP = 'foo': must be one of uvloop, asyncio"):
        loop_factory({"BUCKRAM_LOOP": "foo"})
    assert loop_factory({"BUCKRAM_LOOP": "asyncio"}) is None
