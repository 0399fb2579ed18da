"""Damage to a bookie's disk that it must survive by saying "I do not know": a byte changes under a synced block.

The last block of a log is spared: a bad one there cannot be told from a torn write that was never acknowledged.
"""

from __future__ import annotations

import random
from itertools import pairwise

from buckram.core.segment_format import BLOCK_HEADER, MAGIC, SECTOR, open_block
from buckram.sim.disk import Device


def _blocks(content: bytearray) -> list[tuple[int, int, int]]:
    """(segment, offset, bytes) of every good block, in order of the file."""
    data, found, at = bytes(content), [], content.find(MAGIC)
    while at >= 0:
        if at % SECTOR == 0:
            segment = int.from_bytes(data[at + 8:at + 16], "big")
            salt = int.from_bytes(data[at + 28:at + 32], "big")
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
