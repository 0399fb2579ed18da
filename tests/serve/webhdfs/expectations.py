"""What Spark expects of a file system for checkpoints, asked through Spark's own classes in its JVM.

The same questions go to a local directory and to a gateway: `CheckpointFiles(spark, root)` is one of these. Each
function of EXPECTATIONS takes it, with a directory that nobody else uses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

TAKEN = ("FileAlreadyExistsException", "SparkFileAlreadyExistsException")


class CheckpointFiles:
    """The file manager that Spark chooses for a path, or another one by name; and Hadoop's file system below it."""

    def __init__(self, spark: SparkSession, root: str, manager: str = "") -> None:
        self.jvm: Any = spark._jvm
        conf = spark._jsc.hadoopConfiguration()
        self._root = root
        package = "org.apache.spark.sql.execution.streaming.checkpointing"
        path = self.path("")
        classes = getattr(self.jvm, package)
        if manager:
            self.manager = getattr(classes, manager)(path, conf)
        else:
            self.manager = classes.CheckpointFileManager.create(path, conf)
        self.fs = path.getFileSystem(conf)

    def path(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}".rstrip("/"))

    def begin(self, name: str, data: bytes, overwrite: bool = False) -> Any:
        """A file that is written and not closed yet. Spark makes directories first."""
        self.manager.mkdirs(self.path(name).getParent())
        stream = self.manager.createAtomic(self.path(name), overwrite)
        stream.write(data)
        return stream

    def write(self, name: str, data: bytes, overwrite: bool = False) -> None:
        self.begin(name, data, overwrite).close()

    def read(self, name: str) -> bytes:
        stream = self.manager.open(self.path(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def exists(self, name: str) -> bool:
        return bool(self.manager.exists(self.path(name)))

    def names(self, name: str = "") -> list[str]:
        return sorted(status.getPath().getName() for status in self.manager.list(self.path(name)))

    def files(self, name: str = "") -> list[str]:
        """The same without files that Hadoop keeps beside local ones."""
        return [one for one in self.names(name) if not one.endswith(".crc")]


def fails(work: Callable[[], object], *kinds: str) -> str:
    """AssertionError unless it raises a Java exception whose class is, or whose causes are, one of these."""
    with pytest.raises(Py4JJavaError) as caught:
        work()
    found, seen = caught.value.java_exception, []
    while found is not None:
        seen.append(found.getClass().getSimpleName())
        found = found.getCause()
    assert set(seen) & set(kinds), (seen, str(caught.value)[:2000])
    return str(caught.value.java_exception.getMessage())


def a_file_is_seen_when_it_is_closed(files: CheckpointFiles) -> None:
    stream = files.begin("log/0", b"zero")
    assert not files.exists("log/0")
    stream.close()
    assert files.read("log/0") == b"zero"
    assert files.files("log") == ["0"]


def a_file_that_is_given_up_leaves_nothing(files: CheckpointFiles) -> None:
    files.write("log/0", b"zero")
    files.begin("log/1", b"one").cancel()
    assert files.files("log") == ["0"]


def a_file_is_not_replaced(files: CheckpointFiles) -> None:
    files.write("log/0", b"first")
    fails(lambda: files.write("log/0", b"second"), *TAKEN)
    assert files.read("log/0") == b"first"


def of_two_that_write_one_file_the_second_fails(files: CheckpointFiles) -> None:
    first, second = files.begin("log/0", b"first"), files.begin("log/0", b"second")
    second.close()
    fails(first.close, *TAKEN)
    assert files.read("log/0") == b"second"


def of_many_that_write_one_file_at_once_one_wins(files: CheckpointFiles) -> None:
    streams = [files.begin("log/0", b"%d" % number) for number in range(4)]
    won: list[int] = []

    def close(number: int) -> None:
        try:
            streams[number].close()
            won.append(number)
        except Py4JJavaError:
            pass

    threads = [threading.Thread(target=close, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert files.read("log/0") == b"%d" % won[0]


def what_was_written_is_listed_at_once(files: CheckpointFiles) -> None:
    for number in range(12):
        files.write(f"log/{number}", b"x" * number)
        assert len(files.files("log")) == number + 1
    sizes = {s.getPath().getName(): s.getLen() for s in files.manager.list(files.path("log"))}
    assert {sizes[str(number)] for number in range(12)} == set(range(12))


def directories_are_made_again_and_stay(files: CheckpointFiles) -> None:
    for _ in range(2):
        files.manager.mkdirs(files.path("a/b"))
    assert files.files("a/b") == []
    files.write("a/b/file", b"")
    files.manager.delete(files.path("a/b/file"))
    assert files.files("a/b") == []
    fails(lambda: files.names("none"), "FileNotFoundException")


def deleting_is_repeatable_and_of_all_below(files: CheckpointFiles) -> None:
    files.write("a/b/file", b"x")
    for _ in range(2):
        files.manager.delete(files.path("a"))
        assert not files.exists("a")
    fails(lambda: files.read("a/b/file"), "FileNotFoundException")


def a_file_is_read_from_anywhere(files: CheckpointFiles) -> None:
    data = bytes(range(256)) * 4096
    files.write("large", data)
    stream = files.manager.open(files.path("large"))
    for at in (1_000_000, 0, 255, 1_048_575):
        stream.seek(at)
        assert stream.read() == data[at]
    stream.close()
    assert files.read("large") == data


def statuses_have_sizes_kinds_and_times(files: CheckpointFiles) -> None:
    files.write("d/0", b"abc")
    file, directory = files.fs.getFileStatus(files.path("d/0")), files.fs.getFileStatus(files.path("d"))
    assert (file.isFile(), file.getLen(), directory.isDirectory()) == (True, 3, True)
    now = files.jvm.java.lang.System.currentTimeMillis()
    assert abs(file.getModificationTime() - now) < 60_000
    fails(lambda: files.fs.getFileStatus(files.path("none")), "FileNotFoundException")


def a_directory_is_renamed_as_a_whole(files: CheckpointFiles) -> None:
    files.write("job/part/0", b"0")
    files.write("job/part/1", b"1")
    assert files.fs.rename(files.path("job"), files.path("done"))
    assert files.files("done/part") == ["0", "1"]
    assert not files.exists("job")


def names_may_have_any_characters(files: CheckpointFiles) -> None:
    for name in ("a b", "x=ü%20", "k=a+b&c", "#1"):
        files.write(f"d/{name}", name.encode())
        assert files.read(f"d/{name}") == name.encode()
    assert files.files("d") == sorted(["a b", "x=ü%20", "k=a+b&c", "#1"])


EXPECTATIONS: list[Callable[[CheckpointFiles], None]] = [
    a_file_is_seen_when_it_is_closed,
    a_file_that_is_given_up_leaves_nothing,
    a_file_is_not_replaced,
    of_two_that_write_one_file_the_second_fails,
    of_many_that_write_one_file_at_once_one_wins,
    what_was_written_is_listed_at_once,
    directories_are_made_again_and_stay,
    deleting_is_repeatable_and_of_all_below,
    a_file_is_read_from_anywhere,
    statuses_have_sizes_kinds_and_times,
    a_directory_is_renamed_as_a_whole,
    names_may_have_any_characters,
]
