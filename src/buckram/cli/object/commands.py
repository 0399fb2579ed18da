"""`buckram object`: put, get, list, copy, rename, delete, sweep. Names are NAMESPACE/NAME; NAME may have slashes.

`uploads` and `abort` are about objects in parts that were begun and neither completed nor given up.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.interrupt import Interrupted, interruptible
from buckram.cli.shared.options import (
    cluster_options,
    confirm_loss,
    connected,
    limit_option,
    prefix_option,
    raw_option,
    run_async,
    yes_option,
)
from buckram.cli.shared.output import Bar, counted, emit, input_size, table, transfer
from buckram.cli.shared.stdout import Payload
from buckram.core.objects.rows import check_object_name
from buckram.core.streams.names import DEFAULT_NAMESPACE, check_name
from buckram.errors import InvalidArgument, NoSuchNamespace, NoSuchObject
from buckram.runtime.disk.whole_file import whole_file
from buckram.runtime.process.blocking_reads import read_beside
from buckram.serve.json_views.objects import object_json, upload_json
from buckram.state.objects.objects import ObjectInfo, Objects
from buckram.state.objects.values import UploadInfo

if TYPE_CHECKING:
    from buckram.cluster import Client

_PAGE = 1000


@click.command("uploads")
@click.argument("namespace", shell_complete=completion.namespaces)
@click.option("--prefix", default="", help="Only objects whose names begin with this.")
@limit_option
@cluster_options
def uploads(namespace: str, prefix: str, limit: int | None, uri: str | None, as_json: bool) -> None:
    """List open uploads of objects in parts, the oldest first. With --json each line is one upload.

    A namespace has at most max_uploads of them. One that was not completed for a week is given up by itself.

    \b
    Example:
      buckram object uploads shop
    """
    check_name("namespace", namespace)

    async def main() -> list[UploadInfo]:
        found: list[UploadInfo] = []
        async with connected(uri) as client, client.objects(namespace) as objects:
            after = 0
            while limit is None or len(found) < limit:
                most = _PAGE if limit is None else min(_PAGE, limit - len(found))
                page = await objects.uploads(prefix=prefix, after=after, limit=most)
                if not page:
                    break
                found += page
                after = page[-1].upload
        return found

    found = run_async(main())
    if as_json:
        for one in found:
            emit(upload_json(namespace, one))
        return
    rows = [(one.upload, one.name, one.parts, one.size, values.iso(one.time)) for one in found]
    table(("UPLOAD", "OBJECT", "PARTS", "BYTES", "BEGAN"), rows)


@click.command("abort")
@click.argument("namespace", shell_complete=completion.namespaces)
@click.argument("numbers", metavar="UPLOAD...", type=click.IntRange(1), nargs=-1, required=True)
@yes_option
@cluster_options
def abort(namespace: str, numbers: tuple[int, ...], yes: bool, uri: str | None, as_json: bool) -> None:
    """Abort uploads, by their numbers. Their parts are deleted, and their space is freed.

    \b
    Example:
      buckram object abort shop 12 --yes
    """
    check_name("namespace", namespace)
    what = f"{counted(len(numbers), 'upload')} in parts of namespace {namespace}"
    confirm_loss(f"Abort {what}?", yes, f"{what} were not aborted")

    async def main() -> None:
        async with connected(uri) as client, client.objects(namespace) as objects:
            for number in numbers:
                if await objects.upload_name(number) is None:
                    raise NoSuchObject(
                        namespace,
                        f"upload {number} is not open: it was completed, aborted, or expired after a week; "
                        f"`buckram object uploads {namespace}` lists those that are",
                    )
            for number in numbers:
                await objects.abort_upload(number)

    run_async(main())
    if as_json:
        emit({"namespace": namespace, "aborted": list(numbers)})
    else:
        print(f"{namespace}: aborted {counted(len(numbers), 'upload')}")


_if_absent_option = click.option("--if-absent", is_flag=True, help="Fail if the name is taken.")
_if_match_option = click.option(
    "--if-match", type=int, metavar="VERSION", help="Fail unless the object has this version."
)

_PIECE_BYTES = 1024 * 1024


class ByteSink(Protocol):
    """Destination for the bytes of an object."""

    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> None: ...


@click.group("object")
def object_() -> None:
    """Put, get and manage objects: immutable bytes under names. Each is put as a whole or not at all."""


def split(full: str) -> tuple[str, str]:
    """NAMESPACE/NAME as both. Raises InvalidArgument."""
    namespace, slash, name = full.partition("/")
    if not slash:
        raise InvalidArgument(f"object {full!r}: needs NAMESPACE/NAME, such as default/{full or 'report.pdf'}")
    return check_name("namespace", namespace), check_object_name(name)


@asynccontextmanager
async def objects_of(client: Client, namespace: str, name: str) -> AsyncIterator[Objects]:
    """Yield the objects of a namespace. If it does not exist, the first part of a name with slashes may have been taken
    for a namespace: NoSuchNamespace then says so."""
    try:
        async with client.objects(namespace) as objects:
            yield objects
    except NoSuchNamespace as error:
        if error.namespace != namespace:
            raise
        instead = f"an object's name begins with its namespace: name it {DEFAULT_NAMESPACE}/{namespace}/{name}"
        raise NoSuchNamespace(namespace, instead) from None


@object_.command("put")
@click.argument("name")
@click.argument("file")
@_if_absent_option
@_if_match_option
@click.option("--meta", "pairs", multiple=True, metavar="KEY=VALUE", help="User metadata; repeatable.")
@click.option("--expires", metavar="DURATION", help="Delete the object after this time, such as 30d; default never.")
@cluster_options
def put(
    name: str,
    file: str,
    if_absent: bool,
    if_match: int | None,
    pairs: tuple[str, ...],
    expires: str | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Put FILE (- is standard input) as the object NAME. It takes the place of an object of this name.

    \b
    Example:
      buckram object put shop/2026/report.pdf report.pdf --meta author=ann
    """
    namespace, path = split(name)
    extra = values.pairs("--meta", pairs)
    expires_s = None if expires is None else values.duration("--expires", expires)

    async def main(data: BinaryIO | FileIO, bar: Bar) -> ObjectInfo:
        async with connected(uri) as client, objects_of(client, namespace, path) as objects:
            pieces = _counted(read_beside(data.read, _PIECE_BYTES), bar)
            return await objects.put(
                path, pieces, if_absent=if_absent, if_match=if_match, metadata=extra, expires_s=expires_s
            )

    with _input(file) as (data, size), transfer("pieces", total=size, show=not as_json, file=file != "-") as bar:
        info = run_async(main(data, bar))
    if as_json:
        emit(object_json(namespace, info))
    else:
        print(f"{namespace}/{info.name}: {info.size} bytes, {info.digest}")


@object_.command("get")
@click.argument("name")
@click.argument("file", default="-")
@click.option("--start", type=click.IntRange(0), default=0, show_default=True, help="First byte.")
@click.option("--length", type=click.IntRange(0), help="Maximum number of bytes; default all.")
@raw_option
@cluster_options
def get(name: str, file: str, start: int, length: int | None, raw: bool, uri: str | None, as_json: bool) -> None:
    """Write the bytes of an object to FILE, default standard output. With --json only its metadata is printed.

    A file appears when all of it is there and has the object's digest.

    \b
    Example:
      buckram object get shop/2026/report.pdf report.pdf
    """
    namespace, path = split(name)

    async def main(out: ByteSink | None) -> ObjectInfo:
        async with connected(uri) as client, objects_of(client, namespace, path) as objects:
            info = await objects.info(path)
            if start > info.size:
                raise InvalidArgument(f"--start {start}: object {name} has {info.size} bytes; choose a smaller one")
            if out is not None:
                total = info.size - start if length is None else min(length, info.size - start)
                with transfer("pieces", total=total, show=not as_json, reading=True, file=file != "-") as bar:
                    async for piece in objects.read(path, start=start, length=length):
                        out.write(piece)
                        bar.advance(1, len(piece))
                out.flush()
            return info

    if file != "-":
        info = _to_file(Path(file), main)
    else:
        info = run_async(main(None if as_json else Payload(raw=raw)))
    if as_json:
        emit(object_json(namespace, info))


@object_.command("list")
@click.argument("namespace", shell_complete=completion.namespaces)
@prefix_option
@click.option("--after", default="", help="Only names greater than this one.")
@limit_option
@cluster_options
def list_objects(namespace: str, prefix: str, after: str, limit: int | None, uri: str | None, as_json: bool) -> None:
    """List the objects of a namespace in the order of their names. With --json each line is one object.

    \b
    Example:
      buckram object list shop --prefix 2026/
    """

    async def main() -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        async with connected(uri) as client, client.objects(namespace) as objects:
            place = after
            while limit is None or len(found) < limit:
                most = _PAGE if limit is None else min(_PAGE, limit - len(found))
                page = await objects.list(prefix=prefix, after=place, limit=most)
                if not page:
                    break
                if as_json:
                    for info in page:
                        emit(object_json(namespace, info))
                found += page if not as_json or limit is not None else []
                place = page[-1].name
        return found

    found = run_async(main())
    if not as_json:
        table(("NAME", "BYTES", "PUT"), [(info.name, info.size, values.iso(info.time)) for info in found])


@object_.command("copy")
@click.argument("source")
@click.argument("name")
@_if_absent_option
@cluster_options
def copy(source: str, name: str, if_absent: bool, uri: str | None, as_json: bool) -> None:
    """Put an object under another name of its namespace as well. No byte is copied.

    \b
    Example:
      buckram object copy shop/2026/report.pdf shop/latest.pdf
    """
    namespace, path = split(source)
    other, target = split(name)
    _check_same(namespace, other)

    async def main() -> ObjectInfo:
        async with connected(uri) as client, objects_of(client, namespace, path) as objects:
            return await objects.copy(path, target, if_absent=if_absent)

    info = run_async(main())
    if as_json:
        emit(object_json(namespace, info))
    else:
        print(f"{namespace}/{info.name}: {info.size} bytes")


@object_.command("rename")
@click.argument("source")
@click.argument("name")
@cluster_options
def rename(source: str, name: str, uri: str | None, as_json: bool) -> None:
    """Give an object or a directory another name in one step. A directory takes all that is in it along.

    \b
    Example:
      buckram object rename shop/2026 shop/archive/2026
    """
    namespace, path = split(source)
    other, target = split(name)
    _check_same(namespace, other)

    async def main() -> None:
        async with connected(uri) as client, objects_of(client, namespace, path) as objects:
            await objects.rename(path, target)

    run_async(main())
    if as_json:
        emit({"object": f"{namespace}/{target}"})
    else:
        print(f"{namespace}/{target}")


@object_.command("delete")
@click.argument("name")
@_if_match_option
@click.option("--recursive", is_flag=True, help="Delete a directory with everything in it, in one step.")
@yes_option
@cluster_options
def delete(name: str, if_match: int | None, recursive: bool, yes: bool, uri: str | None, as_json: bool) -> None:
    """Delete an object, or with --recursive a directory.

    \b
    Example:
      buckram object delete shop/latest.pdf --yes
    """
    namespace, path = split(name)
    if recursive and if_match is not None:
        raise InvalidArgument(f"--if-match {if_match} is of one object, and --recursive of a directory: choose one")
    what = "directory" if recursive else "object"
    confirm_loss(f"Delete {what} {name}?", yes, f"{what} {name} is not deleted")

    async def main() -> None:
        async with connected(uri) as client, objects_of(client, namespace, path) as objects:
            if recursive:
                await objects.remove(path, recursive=True)
            else:
                await objects.delete(path, if_match=if_match)

    run_async(main())
    if as_json:
        emit({"object": name, "deleted": True})


@object_.command("sweep")
@click.argument("namespace", shell_complete=completion.namespaces)
@click.option(
    "--grace", default="30s", show_default=True, help="Time for which deleted bytes are kept for those who read them."
)
@cluster_options
def sweep(namespace: str, grace: str, uri: str | None, as_json: bool) -> None:
    """Free the space of objects that were deleted or have expired. Leftovers of writers that died are removed as well.

    A long-running process that writes objects does so by itself. Run this from cron where only short commands write.

    \b
    Example:
      buckram object sweep shop
    """

    async def main() -> int:
        async with connected(uri) as client, client.objects(check_name("namespace", namespace)) as objects:
            return await objects.sweep(grace_s=values.duration("--grace", grace))

    deleted = run_async(main())
    if as_json:
        emit({"namespace": namespace, "ledgers_deleted": deleted})
    else:
        print(f"{namespace}: deleted {counted(deleted, 'ledger')}")


object_.add_command(uploads)
object_.add_command(abort)


@contextmanager
def _input(file: str) -> Iterator[tuple[BinaryIO | FileIO, int | None]]:
    """Yield the file to put, and its size if that is known."""
    if file == "-":
        # Without a buffer: its lock would be held by the thread that reads when the command ends early.
        with open(0, "rb", buffering=0, closefd=False) as data:
            yield data, input_size()
        return
    with Path(file).open("rb") as data:
        found = os.fstat(data.fileno())
        yield data, found.st_size if stat.S_ISREG(found.st_mode) else None


async def _counted(pieces: AsyncGenerator[bytes, None], bar: Bar) -> AsyncIterator[bytes]:
    async with aclosing(pieces):
        async for piece in pieces:
            bar.advance(1, len(piece))
            yield piece


def _to_file(file: Path, read: Callable[[ByteSink], Coroutine[Any, Any, ObjectInfo]]) -> ObjectInfo:
    """Give the file its name when all of it is there."""
    if file.is_dir() or not file.parent.is_dir():
        trouble = "is a folder" if file.is_dir() else f"folder {file.parent} does not exist"
        raise InvalidArgument(f"file {file}: {trouble}; choose the name of a file in a folder that is there")
    with interruptible():
        try:
            with whole_file(file) as out:
                return run_async(read(out))
        except KeyboardInterrupt:
            raise Interrupted(f"file {file} is not written") from None


def _check_same(namespace: str, other: str) -> None:
    if namespace != other:
        raise InvalidArgument(
            f"both names must be of one namespace, not {namespace} and {other}: get the object and put it there"
        )
