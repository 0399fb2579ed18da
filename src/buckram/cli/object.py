"""`buckram object`: put, get, list, copy, rename, delete. Names are NAMESPACE/NAME; NAME may have slashes itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, BinaryIO

import click

from buckram.cli import completion, values
from buckram.cli.confirm import confirm_loss
from buckram.cli.options import connected, json_option, metadata_option, run_async, yes_option
from buckram.cli.output import emit, table
from buckram.core.objects.rows import check_object_name
from buckram.core.streams.names import check_name
from buckram.errors import InvalidArgument
from buckram.objects.objects import ObjectInfo

_PAGE = 1000


@click.group("object")
def object_() -> None:
    """Objects: immutable bytes under names, put as a whole or not at all."""


def split(full: str) -> tuple[str, str]:
    """NAMESPACE/NAME as both. Raises InvalidArgument."""
    namespace, slash, name = full.partition("/")
    if not slash:
        raise InvalidArgument(f"object {full!r}: needs NAMESPACE/NAME, such as default/{full or 'report.pdf'}")
    return check_name("namespace", namespace), check_object_name(name)


def _shown(namespace: str, info: ObjectInfo) -> dict[str, Any]:
    """The keys of an object in JSON. Times in microseconds UTC."""
    return {
        "object": f"{namespace}/{info.name}",
        "bytes": info.size,
        "digest": info.digest,
        "version": info.version,
        "time": info.time,
        "expires": info.expires,
        "metadata": dict(info.metadata),
    }


@object_.command("put")
@click.argument("name")
@click.argument("file")
@click.option("--if-absent", is_flag=True, help="Fail if the name is taken.")
@click.option("--if-match", type=int, metavar="VERSION", help="Fail unless the object has this version.")
@click.option("--meta", "pairs", multiple=True, metavar="KEY=VALUE", help="User metadata; repeatable.")
@click.option("--expires", metavar="DURATION", help="It goes by itself after so long, such as 30d.")
@metadata_option
@json_option
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
    """Put FILE (- is standard input) as the object NAME, in the place of one of this name.

    \b
    Example:
      buckram object put shop/2026/report.pdf report.pdf --meta author=ann
    """
    namespace, path = split(name)
    extra = values.pairs("--meta", pairs)
    expires_s = None if expires is None else values.duration("--expires", expires)

    async def main(data: BinaryIO) -> ObjectInfo:
        async with connected(uri) as client, client.objects(namespace) as objects:
            return await objects.put(
                path, data, if_absent=if_absent, if_match=if_match, metadata=extra, expires_s=expires_s
            )

    if file == "-":
        info = run_async(main(sys.stdin.buffer))
    else:
        with Path(file).open("rb") as data:
            info = run_async(main(data))
    if as_json:
        emit(_shown(namespace, info))
    else:
        print(f"{namespace}/{info.name}: {info.size} bytes, {info.digest}")


@object_.command("get")
@click.argument("name")
@click.argument("file", default="-")
@click.option("--start", type=click.IntRange(0), default=0, show_default=True, help="From this byte on.")
@click.option("--length", type=click.IntRange(0), help="So many bytes at most.")
@metadata_option
@json_option
def get(name: str, file: str, start: int, length: int | None, uri: str | None, as_json: bool) -> None:
    """Write the bytes of an object to FILE, default standard output. With --json only what is known of it is printed.

    A file appears when all of it is there and has the object's digest.

    \b
    Example:
      buckram object get shop/2026/report.pdf report.pdf
    """
    namespace, path = split(name)

    async def main(out: BinaryIO | None) -> ObjectInfo | None:
        async with connected(uri) as client, client.objects(namespace) as objects:
            if out is not None:
                async for piece in objects.read(path, start=start, length=length):
                    out.write(piece)
                out.flush()
            return await objects.info(path) if as_json else None

    if file != "-":
        info = _to_file(Path(file), main)
    else:
        info = run_async(main(None if as_json else sys.stdout.buffer))
    if info is not None:
        emit(_shown(namespace, info))


@object_.command("list")
@click.argument("namespace", shell_complete=completion.namespaces)
@click.option("--prefix", default="", help="Only names that begin so.")
@click.option("--after", default="", help="Only names greater than this one.")
@click.option("--limit", type=click.IntRange(1), help="So many at most.")
@metadata_option
@json_option
def list_objects(namespace: str, prefix: str, after: str, limit: int | None, uri: str | None, as_json: bool) -> None:
    """Objects of a namespace in the order of their names; with --json one object a line.

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
                        emit(_shown(namespace, info))
                found += page if not as_json or limit is not None else []
                place = page[-1].name
        return found

    found = run_async(main())
    if not as_json:
        table(("NAME", "BYTES", "PUT"), [(info.name, info.size, values.iso(info.time)) for info in found])


@object_.command("copy")
@click.argument("source")
@click.argument("name")
@click.option("--if-absent", is_flag=True, help="Fail if the name is taken.")
@metadata_option
@json_option
def copy(source: str, name: str, if_absent: bool, uri: str | None, as_json: bool) -> None:
    """Put an object under another name of its namespace as well; no byte is copied.

    \b
    Example:
      buckram object copy shop/2026/report.pdf shop/latest.pdf
    """
    namespace, path = split(source)
    other, target = split(name)
    _check_same(namespace, other)

    async def main() -> ObjectInfo:
        async with connected(uri) as client, client.objects(namespace) as objects:
            return await objects.copy(path, target, if_absent=if_absent)

    info = run_async(main())
    if as_json:
        emit(_shown(namespace, info))
    else:
        print(f"{namespace}/{info.name}: {info.size} bytes")


@object_.command("rename")
@click.argument("source")
@click.argument("name")
@metadata_option
@json_option
def rename(source: str, name: str, uri: str | None, as_json: bool) -> None:
    """Give an object, or a directory with all that is in it, another name in one step.

    \b
    Example:
      buckram object rename shop/2026 shop/archive/2026
    """
    namespace, path = split(source)
    other, target = split(name)
    _check_same(namespace, other)

    async def main() -> None:
        async with connected(uri) as client, client.objects(namespace) as objects:
            await objects.rename(path, target)

    run_async(main())
    if as_json:
        emit({"object": f"{namespace}/{target}"})
    else:
        print(f"{namespace}/{target}")


@object_.command("delete")
@click.argument("name")
@click.option("--if-match", type=int, metavar="VERSION", help="Fail unless the object has this version.")
@yes_option
@metadata_option
@json_option
def delete(name: str, if_match: int | None, yes: bool, uri: str | None, as_json: bool) -> None:
    """Delete an object.

    \b
    Example:
      buckram object delete shop/latest.pdf --yes
    """
    namespace, path = split(name)
    confirm_loss(f"Delete object {name}?", yes, f"object {name} is not deleted")

    async def main() -> None:
        async with connected(uri) as client, client.objects(namespace) as objects:
            await objects.delete(path, if_match=if_match)

    run_async(main())
    if as_json:
        emit({"object": name, "deleted": True})


def _to_file(file: Path, read: Callable[[BinaryIO], Coroutine[Any, Any, ObjectInfo | None]]) -> ObjectInfo | None:
    """Give the file its name when all of it is there."""
    part = file.with_name(f"{file.name}.part-{os.getpid()}")
    try:
        with part.open("xb") as out:
            info = run_async(read(out))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return info


def _check_same(namespace: str, other: str) -> None:
    if namespace != other:
        raise InvalidArgument(
            f"both names must be of one namespace, not {namespace} and {other}: get the object and put it there"
        )


__all__ = ["object_"]
