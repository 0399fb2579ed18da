"""`buckram object uploads` and `abort`: objects in parts that were begun and neither completed nor given up."""

from __future__ import annotations

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.options import cluster_options, confirm_loss, connected, limit_option, run_async, yes_option
from buckram.cli.shared.output import counted, emit, table
from buckram.core.streams.names import check_name
from buckram.errors import NoSuchObject
from buckram.serve.json_views.objects import upload_json
from buckram.state.objects.values import UploadInfo

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
