"""Headers of requests for objects: ranges, conditions, metadata; and headers of their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.utils import formatdate
from typing import NamedTuple

from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.http.problems import SAFE, HttpProblem
from buckram.state.objects.objects import ObjectInfo

METADATA = "Buckram-Metadata"
_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*", re.ASCII)
_TAG = re.compile(r'"(\d{1,19})"', re.ASCII)


class Precondition(NamedTuple):
    """Precondition of a put: no object (`if_absent`), or this version (`if_match`)."""

    if_absent: bool = False
    if_match: int | None = None

    def __bool__(self) -> bool:
        return self.if_absent or self.if_match is not None


def tag_of(version: int) -> str:
    """The ETag of an object with this version."""
    return f'"{version}"'


def condition_of(headers: Mapping[str, str]) -> Precondition:
    """The condition of a change. Raises HttpProblem 400."""
    match, none = headers.get("if-match"), headers.get("if-none-match")
    if none is not None and (none.strip() != "*" or match is not None):
        raise bad_request(
            f"If-None-Match {none[:60]!r}: a change takes * (nothing may be there), and no If-Match beside it"
        )
    if match is None:
        return Precondition(if_absent=none is not None)
    found = _TAG.fullmatch(match.strip())
    if found is None:
        raise bad_request(f'If-Match {match[:60]!r}: needs the ETag of one version, such as "7"')
    return Precondition(if_match=int(found[1]))


def check_unchanged(headers: Mapping[str, str], info: ObjectInfo) -> bool:
    """Return whether the client has this version already (If-None-Match). Raises HttpProblem 412 if If-Match does not
    name this version.
    """
    tag = tag_of(info.version)
    match = headers.get("if-match")
    if match is not None and "*" not in (tags := _tags(match)) and tag not in tags:
        raise HttpProblem(
            412,
            "OBJECT_CHANGED",
            f"object {info.name} has version {info.version}, and If-Match says {match[:60]}: read it again",
        )
    none = headers.get("if-none-match")
    return none is not None and bool({"*", tag, f"W/{tag}"} & set(_tags(none)))


def _tags(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


def range_of(headers: Mapping[str, str], info: ObjectInfo) -> tuple[int, int] | None:
    """Return the requested bytes, from and to (exclusive); None for all of them, also if several ranges are requested.

    Raises HttpProblem 416 if the object has none of these bytes.
    """
    text, only_for = headers.get("range"), headers.get("if-range")
    found = None if text is None else _RANGE.fullmatch(text)
    if found is None or (only_for is not None and only_for.strip() != tag_of(info.version)):
        return None
    first, last = found[1], found[2]
    if not first and not last:
        return None
    size = info.size
    start, stop = (int(first), int(last) + 1 if last else size) if first else (max(size - int(last), 0), size)
    if first and stop <= start and last:
        return None  # it says nothing that can be meant, and counts as not said
    if start >= size:
        raise HttpProblem(
            416,
            "RANGE_NOT_SATISFIABLE",
            f"Range {(text or '')[:60]!r}: object {info.name} has {size} bytes, ask for some of them",
            headers={"Content-Range": f"bytes */{size}"},
            value=start,
            limit=size,
        )
    return start, min(stop, size)


def metadata_of(headers: Mapping[str, str]) -> dict[str, str]:
    """User metadata of a put. Raises HttpProblem 400."""
    text = headers.get(METADATA.lower())
    if text is None:
        return {}
    try:
        found = json.loads(text.encode("latin-1").decode())  # a header's bytes are letters of UTF-8 here
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise bad_request(
            f'{METADATA} {text[:60]!r}: needs a JSON object of texts in UTF-8, such as {{"author": "ann"}}'
        )
    return found


def headers_of(info: ObjectInfo) -> dict[str, str]:
    """Return the headers of an answer that describe an object, without its length."""
    found = {
        "Accept-Ranges": "bytes",
        "Buckram-Digest": info.digest,
        "Cache-Control": "no-cache",
        "ETag": tag_of(info.version),
        "Last-Modified": formatdate(info.time / 1e6, usegmt=True),
        **SAFE,
    }
    if info.metadata:
        found[METADATA] = json.dumps(dict(info.metadata))
    if info.expires is not None:
        found["Buckram-Expires-Us"] = str(info.expires)
    return found
