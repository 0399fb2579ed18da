"""Damage to a bookie's disk: changed bytes under a synced block or in an index, and logs with a damaged or missing end.

After damage to a block or to the log's end the bookie must answer that it does not know; after damage to an index it
must still find everything. After a kill, the page that witnesses the log's end reaches the device before the last block
is damaged. A power loss also removes that page. A bad last block is then noticed if an empty block follows it or if the
file was cut short; otherwise it looks like a write that never finished.
"""

from __future__ import annotations

import random
from itertools import pairwise

from buckram.bookie.storage import superblock
from buckram.bookie.storage.log.tail_page import NAME as TAIL
from buckram.bookie.storage.log.tail_page import read_mark
from buckram.bookie.storage.superblock import Superblock
from buckram.core.storage.segment_format import (
    BLOCK_HEADER,
    MAGIC,
    PAGE,
    SECTOR,
    TRAILER_SIZE,
    open_block,
    open_trailer,
)
from buckram.errors import CorruptStore
from buckram.seams import PAGE_BYTES
from simulator.engine.disk import Device


def _blocks(content: bytearray) -> list[tuple[int, int, int]]:
    """Return (segment, offset, bytes) of every valid block, in the order of the file."""
    data, found, at = bytes(content), [], content.find(MAGIC)
    while at >= 0:
        if at % SECTOR == 0:
            segment = int.from_bytes(data[at + 8 : at + 16], "big")
            salt = int.from_bytes(data[at + 28 : at + 32], "big")
            block = open_block(data, at, segment, salt, at)
            if block is not None:
                found.append((segment, at, BLOCK_HEADER + len(block.payload)))
        at = data.find(MAGIC, at + 1)
    return found


def flip_some_byte(device: Device, rng: random.Random) -> bool:
    """Change one byte of a durable block that another one follows; False if there is none yet."""
    choices: list[tuple[str, int]] = []
    for name in device.model.names():
        blocks = _blocks(device.model.inode(name).content)
        for (segment, offset, size), (following, _, _) in pairwise(blocks):
            if segment == following:
                choices.append((name, offset + rng.randrange(size)))
    if not choices:
        return False
    name, offset = rng.choice(choices)
    device.flip_bits(name, offset, 1 << rng.randrange(8))
    return True


def _superblock(device: Device) -> Superblock | None:
    names = device.model.names()
    if superblock.NAME not in names or TAIL not in names:
        return None
    inode = device.model.inode(superblock.NAME)
    try:
        return superblock.decode(inode.read(0, inode.size()), "it")
    except CorruptStore:
        return None


def flip_some_index(device: Device, rng: random.Random) -> bool:
    """Change one byte of the footer of a sealed log file; False if there is none."""
    block = _superblock(device)
    choices: list[tuple[str, int]] = []
    for entry in block.segments if block is not None else ():
        if block is None or not entry.log_end or entry.name not in device.model.names():
            continue
        content = device.model.inode(entry.name).content
        trailer = open_trailer(bytes(content[-TRAILER_SIZE:]), entry.seq, block.salt)
        if trailer is not None:
            first = trailer.footer_at if rng.random() < 0.7 else len(content) - 100
            choices.append((entry.name, rng.randrange(first, len(content))))
    if not choices:
        return False
    name, offset = rng.choice(choices)
    device.flip_bits(name, offset, 1 << rng.randrange(8))
    return True


def flip_table(device: Device, rng: random.Random) -> bool:
    """Change one byte of the ledger table where even a single record uses it; False if there is none."""
    block = _superblock(device)
    if block is None or not block.table or block.table not in device.model.names():
        return False
    page = rng.randrange(0, len(device.model.inode(block.table).content), PAGE)
    device.flip_bits(block.table, page + rng.randrange(48), 1 << rng.randrange(8))
    return True


def flip_superblock(device: Device, rng: random.Random) -> bool:
    """Change one byte of the superblock; False if there is none."""
    if _superblock(device) is None:
        return False
    device.flip_bits(superblock.NAME, rng.randrange(len(device.model.inode(superblock.NAME).content)), 1)
    return True


def damage_tail_without_page(device: Device, rng: random.Random) -> bool:
    """After a loss of power, damage the last block with entries if an empty block follows it.

    Without an empty block behind it the file is cut off there.

    Return False if there is nothing to damage.
    """
    block = _superblock(device)
    open_ones = [] if block is None else [one for one in block.segments if one.states and not one.log_end]
    logs = [
        (
            one.name,
            [(at, size) for segment, at, size in _blocks(device.model.inode(one.name).content) if segment == one.seq],
        )
        for one in open_ones
        if one.name in device.model.names()
    ]
    used = [(name, blocks) for name, blocks in logs if any(size > BLOCK_HEADER for _, size in blocks)]
    if not used:
        return False
    name, blocks = used[-1]
    last = max(n for n, (_, size) in enumerate(blocks) if size > BLOCK_HEADER)
    at, size = blocks[last]
    kind = rng.choice(("header", "payload", "zeros", "cut")) if last + 1 < len(blocks) else "cut"
    device.loop.trace.note(device.name, f"the last block of {name} at {at} is damaged after a loss of power: {kind}")
    content = device.model.inode(name).content
    if kind == "cut":
        del content[at:]
    elif kind == "zeros":
        content[at : at + size] = bytes(size)
    else:
        content[at + rng.randrange(BLOCK_HEADER if kind == "header" else size)] ^= 1 << rng.randrange(8)
    return True


def damage_tail(device: Device, rng: random.Random) -> bool:
    """Damage the last acknowledged block of a log, or cut the file off there. Its process must be dead.

    Return False if there is nothing to damage.
    """
    block = _superblock(device)
    mark = None if block is None else read_mark(device.model.inode(TAIL).read(0, PAGE_BYTES), block.salt)
    names = [] if block is None or mark is None else [one.name for one in block.segments if one.seq == mark.end.seq]
    if mark is None or not names or names[0] not in device.model.names():
        return False
    inode = device.model.inode(names[0])
    seq, end = mark.end
    last = [(at, size) for segment, at, size in _blocks(inode.content) if segment == seq and at < end]
    if not last or last[-1][1] == BLOCK_HEADER:
        return False
    at, size = last[-1]
    kind = rng.choice(("header", "payload", "zeros", "cut"))
    device.loop.trace.note(device.name, f"the last block of {names[0]} at {at} is damaged: {kind}")
    inode.pending.clear()
    if kind == "cut":
        del inode.content[at:]
        return True
    device.model.flush_pages()
    if kind == "zeros":
        inode.content[at:end] = bytes(end - at)
    else:
        inode.content[at + rng.randrange(BLOCK_HEADER if kind == "header" else size)] ^= 1 << rng.randrange(8)
    return True
