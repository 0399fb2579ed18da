"""`buckram://` under fsspec: its own suite for file systems, files in parts, errors, Parquet by pandas and pyarrow."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

fsspec = pytest.importorskip("fsspec")

from fsspec.tests.abstract import (  # noqa: E402
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)
from tests.support.polling import wait_until  # noqa: E402

from buckram import sync  # noqa: E402
from buckram.files.filesystem import BuckramFileSystem  # noqa: E402
from buckram.testing import ThreadedCluster  # noqa: E402

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def files() -> Iterator[BuckramFileSystem]:
    with ThreadedCluster(bookies=3) as cluster:
        fsspec.register_implementation("buckram", BuckramFileSystem, clobber=True)
        found = fsspec.filesystem("buckram", metadata=cluster.uri)
        yield found
        found.close()


@pytest.fixture(autouse=True)
def _a_share_of_globs(request: pytest.FixtureRequest) -> None:
    """There are more than a hundred variations of globs; one in ten runs here, and all of them in `make soak`."""
    function, _, variation = request.node.name.partition("[")
    if (
        function.endswith("glob_edge_cases")
        and not os.environ.get("BUCKRAM_ALL_GLOBS")
        and crc32(variation.encode()) % 10
    ):
        pytest.skip("make soak runs it")


class BuckramFixtures(AbstractFixtures):  # type: ignore[misc]
    """What fsspec's suite asks for."""

    @pytest.fixture
    def fs(self, files: BuckramFileSystem) -> BuckramFileSystem:
        return files

    @pytest.fixture
    def fs_path(self) -> str:
        return "default/suite"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(part.rstrip("/") if part != parts[-1] else part for part in parts)


class TestCopy(AbstractCopyTests, BuckramFixtures):  # type: ignore[misc]
    pass


class TestGet(AbstractGetTests, BuckramFixtures):  # type: ignore[misc]
    pass


class TestPut(AbstractPutTests, BuckramFixtures):  # type: ignore[misc]
    pass


class TestOpen(AbstractOpenTests, BuckramFixtures):  # type: ignore[misc]
    pass


class TestPipe(AbstractPipeTests, BuckramFixtures):  # type: ignore[misc]
    pass


def test_fsspec_finds_it_by_the_name_of_the_protocol() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["fsspec.specs"]["buckram"].partition(":")
    assert getattr(import_module(module), name) is BuckramFileSystem


def test_a_file_appears_as_a_whole_when_it_is_closed(files: BuckramFileSystem) -> None:
    data = os.urandom(5 * MIB + 3)
    with files.open("buckram://default/parts/a", "wb", block_size=MIB) as file:
        for begin in range(0, len(data), 700_000):
            file.write(data[begin : begin + 700_000])
        assert not files.exists("default/parts/a")
    assert files.cat_file("default/parts/a") == data
    assert files.cat_file("default/parts/a", start=-7, end=-2) == data[-7:-2]
    assert files.checksum("default/parts/a").startswith("parts:")
    with files.open("default/parts/a", "rb", block_size=MIB) as file:
        file.seek(2 * MIB + 5)
        assert file.read(10) == data[2 * MIB + 5 :][:10]
    for size in (3, 3 * MIB):
        with suppress(ZeroDivisionError), files.open("default/parts/b", "wb", block_size=MIB) as file:
            file.write(bytes(size))
            raise ZeroDivisionError
    assert files.ls("default/parts", detail=False) == ["default/parts/a"]


def test_errors_are_those_of_files(files: BuckramFileSystem) -> None:
    files.pipe_file("default/e/file", b"x")
    with pytest.raises(FileNotFoundError):
        files.open("default/e/none")
    with pytest.raises(FileNotFoundError):
        files.info("nowhere/e")
    with pytest.raises(FileExistsError):
        files.pipe_file("default/e/file", b"y", mode="create")
    with pytest.raises(FileExistsError), files.open("default/e/file", "xb") as file:
        file.write(b"y")
    with pytest.raises(FileExistsError):
        files.mkdir("default/e")
    with pytest.raises(NotADirectoryError):
        files.pipe_file("default/e/file/below", b"")
    with pytest.raises(IsADirectoryError):
        files.open("default/e", "wb").close()
    with pytest.raises(IsADirectoryError):
        files.rm("default/e")
    with pytest.raises(OSError, match="not empty"):
        files.rmdir("default/e")
    with pytest.raises(ValueError, match="immutable"):
        files.open("default/e/file", "ab")
    assert files.cat_file("default/e/file") == b"x"


def test_namespaces_are_the_top_and_directories_move_in_one_step(files: BuckramFileSystem) -> None:
    files.mkdir("fresh")
    assert "fresh" in files.ls("", detail=False)
    files.makedirs("fresh/a/b")
    files.pipe_file("fresh/a/b/c", b"1")
    files.mv("fresh/a", "fresh/z", recursive=True)
    assert files.find("fresh") == ["fresh/z/b/c"]
    files.cp_file("fresh/z/b/c", "default/copied")
    assert files.cat_file("default/copied") == b"1"
    assert files.modified("fresh/z/b/c").tzinfo is not None
    files.rm("fresh/z", recursive=True)
    assert files.ls("fresh") == []


def test_objects_that_were_deleted_under_it_are_opened_again(files: BuckramFileSystem) -> None:
    files.mkdir("anew")
    files.pipe_file("anew/a", b"1")
    before = files.objects("anew")
    with sync.connect(files._metadata) as client:
        client.namespace("anew").delete("buckram.objects", purpose="objects")
    wait_until(lambda: before.ended, "its replica goes on")
    files.pipe_file("anew/b", b"2")
    assert files.ls("anew", detail=False) == ["anew/b"]
    assert not files.objects("anew").ended


def test_parquet_goes_there_and_back(files: BuckramFileSystem) -> None:
    pandas = pytest.importorskip("pandas")
    dataset = pytest.importorskip("pyarrow.dataset")
    parquet = pytest.importorskip("pyarrow.parquet")
    frame: Any = pandas.DataFrame({"kind": ["a", "b"] * 500, "value": range(1000)})
    options = {"metadata": files.storage_options["metadata"]}
    frame.to_parquet("buckram://default/frames/one.parquet", storage_options=options)
    again = pandas.read_parquet("buckram://default/frames/one.parquet", storage_options=options)
    assert again.equals(frame)
    table = parquet.read_table("default/frames/one.parquet", filesystem=files)
    parquet.write_to_dataset(table, "default/frames/many", partition_cols=["kind"], filesystem=files)
    found = dataset.dataset("default/frames/many", filesystem=files, partitioning="hive").to_table()
    assert sorted(found.column("value").to_pylist()) == list(range(1000))


def test_touch_empties_a_file_only_if_that_is_wanted(files: BuckramFileSystem) -> None:
    path = "default/touched"
    files.touch(path, truncate=False)
    assert files.cat_file(path) == b""
    files.pipe_file(path, b"kept")
    before = files.info(path)["version"]
    files.touch(path, truncate=False)
    assert files.cat_file(path) == b"kept"
    assert files.info(path)["version"] > before
    files.touch(path)
    assert files.cat_file(path) == b""
