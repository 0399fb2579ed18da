"""Compression of batch bodies: none, lz4 (block) or zstd. Both libraries are optional; sizes are bounded by callers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from buckram.errors import InvalidArgument, MalformedBatch, MissingCodec
from buckram.extras import needs
from buckram.types import Buffer

NONE, LZ4, ZSTD = 0, 1, 2
CODECS = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
_NAMES = {number: name for name, number in CODECS.items()}
_MODULES = {LZ4: "lz4.block", ZSTD: "zstandard"}
_loaded: dict[int, tuple[Callable[[Buffer], bytes], Callable[[Buffer, int], bytes]]] = {}


def codec_number(name: str) -> int:
    """Return the number of a codec. Raises InvalidArgument for an unknown name, MissingCodec if its library is not
    installed.
    """
    number = CODECS.get(name)
    if number is None:
        raise InvalidArgument(f"compression {name!r}: choose one of {', '.join(CODECS)}")
    if number != NONE:
        _load(number)
    return number


def compress(number: int, body: bytes) -> bytes:
    return body if number == NONE else _load(number)[0](body)


def decompress(number: int, body: Buffer, size: int) -> Buffer:
    """Return the body decompressed: exactly `size` bytes, never allocating more. Raises MalformedBatch for anything
    else.
    """
    if number == NONE:
        found: Buffer = body
    elif number not in _NAMES:
        raise MalformedBatch(f"compression {number} is unknown to this version")
    else:
        try:
            found = _load(number)[1](body, size)
        except MissingCodec:
            raise
        except Exception as error:  # each library has errors of its own
            raise MalformedBatch(f"the {_NAMES[number]} body does not decompress: {error}") from None
    if len(found) != size:
        raise MalformedBatch(f"the body has {len(found)} bytes, the header says {size}")
    return found


class Codec:
    """zstd with a context of its own, for one thread at a time."""

    def __init__(self) -> None:
        try:
            module: Any = import_module(_MODULES[ZSTD])
        except ImportError:
            raise MissingCodec(needs("compression zstd", "compression")) from None
        self._pack, self._unpack = _zstd(module)

    def compress(self, body: Buffer) -> bytes:
        return self._pack(body)

    def decompress(self, body: Buffer, size: int) -> bytes:
        """Return the body decompressed: exactly `size` bytes, never allocating more. Raises MalformedBatch for anything
        else.
        """
        try:
            found = self._unpack(body, size)
        except Exception as error:  # the library has errors of its own
            raise MalformedBatch(f"the zstd body does not decompress: {error}") from None
        if len(found) != size:
            raise MalformedBatch(f"the body has {len(found)} bytes, the header says {size}")
        return found


def _load(number: int) -> tuple[Callable[[Buffer], bytes], Callable[[Buffer, int], bytes]]:
    pair = _loaded.get(number)
    if pair is None:
        name = _NAMES[number]
        try:
            module: Any = import_module(_MODULES[number])
        except ImportError:
            raise MissingCodec(needs(f"compression {name}", "compression")) from None
        pair = _loaded[number] = _lz4(module) if number == LZ4 else _zstd(module)
    return pair


def _lz4(block: Any) -> tuple[Callable[[Buffer], bytes], Callable[[Buffer, int], bytes]]:
    def pack(body: Buffer) -> bytes:
        packed: bytes = block.compress(body, store_size=False)
        return packed

    def unpack(body: Buffer, size: int) -> bytes:
        found: bytes = block.decompress(body, uncompressed_size=size)
        return found

    return pack, unpack


def _zstd(zstandard: Any) -> tuple[Callable[[Buffer], bytes], Callable[[Buffer, int], bytes]]:
    # A context serves one call at a time, and clients may have their loops in several threads: a call takes one
    # out of the list, which is atomic, and puts it back.
    packers: list[Any] = []
    unpackers: list[Any] = []

    def pack(body: Buffer) -> bytes:
        try:
            packer = packers.pop()
        except IndexError:
            packer = zstandard.ZstdCompressor(level=1, write_content_size=True)
        packed: bytes = packer.compress(body)
        packers.append(packer)
        return packed

    def unpack(body: Buffer, size: int) -> bytes:
        # The size in the frame decides what the library allocates, so it is checked first.
        if zstandard.frame_content_size(body) != size:
            raise MalformedBatch("the zstd frame names another size than the header")
        try:
            unpacker = unpackers.pop()
        except IndexError:
            unpacker = zstandard.ZstdDecompressor()
        found: bytes = unpacker.decompress(body, max_output_size=size)
        unpackers.append(unpacker)
        return found

    return pack, unpack
