"""Conversion of sampled stacks into a flame graph (SVG), and into microseconds per entry by stage. Pure; profiling.py
takes samples.

Stacks are those of `py-spy record --format raw`: frames from the outermost on
with semicolons between, a space, a count.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape

Stacks = Mapping[tuple[str, ...], int]
WIDTH, ROW, FONT = 1200, 16, 11
NARROWEST = 0.0008
"""Share of the width below which a frame is not drawn."""
OTHER = "event loop and its system calls"
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^():]+)(?::\d+)?\)$")

# What a frame's time is for, by a part of its file's path: the innermost frame that is known, the first row that fits.
STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "checksums and frames",
        (
            "core/wire/adds",
            "core/entries/python_twins.py",
            "core/entries/entry.py",
            "core/entries/strides.py",
            "core/ledgers/runs.py",
        ),
    ),
    (
        "splitting and decoding",
        ("core/wire/server_protocol.py", "core/wire/frames.py", "core/wire/v2.py", "core/wire/v3.py"),
    ),
    ("matching answers", ("core/wire/acks.py", "core/wire/client_protocol.py")),
    ("counting acknowledgements", ("core/ledgers/append.py", "core/ledgers/quorum.py", "core/ledgers/answers.py")),
    (
        "room and futures",
        (
            "client/write/append_limits.py",
            "client/write/completions.py",
            "client/write/engine.py",
            "asyncio/futures.py",
        ),
    ),
    ("sending", ("runtime/net/", "client/write/outbox.py", "client/shared/send_batcher.py")),
    ("reading", ("client/", "core/ledgers/reading.py", "core/entries/packed.py")),
    (
        "admission and dispatch",
        (
            "bookie/service/entries/adds.py",
            "bookie/service/dispatch.py",
            "bookie/service/entries/admission.py",
            "bookie/service/connections/memory_budget.py",
        ),
    ),
    ("connections", ("bookie/service/connections/session.py", "bookie/service/server.py")),
    (
        "commit: copy, write, sync",
        ("bookie/storage/log/group_commit.py", "bookie/storage/log/block.py", "runtime/disk/"),
    ),
    (
        "index and store",
        (
            "bookie/storage/store.py",
            "bookie/storage/segments/index.py",
            "bookie/storage/ledger_table.py",
            "bookie/storage/store_state.py",
        ),
    ),
    (
        "sealing and compaction",
        (
            "bookie/storage/upkeep/maintenance.py",
            "bookie/storage/upkeep/log_files.py",
            "bookie/storage/upkeep/log_files.py",
            "bookie/storage/upkeep/compaction",
            "bookie/storage/segments/segments.py",
            "bookie/storage/disk_space.py",
        ),
    ),
    (
        "reads of a bookie",
        (
            "bookie/service/entries/reads.py",
            "bookie/service/entries/read_replies.py",
            "bookie/storage/reading/lookup.py",
            "bookie/storage/reading/fetching.py",
            "bookie/storage/reading/read_ahead.py",
        ),
    ),
    ("load generator", ("cli/bench/load.py", "cli/bench/profiling.py", "bench/")),
)


def parse(text: str) -> Counter[tuple[str, ...]]:
    """Return stacks with their counts; raises ValueError for a line of another form."""
    found: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        if line.strip():
            frames, _, count = line.rpartition(" ")
            found[tuple(frames.split(";"))] += int(count)
    return found


def stage_of(stack: tuple[str, ...]) -> str:
    """Return the stage of the innermost frame that belongs to one."""
    for frame in reversed(stack):
        named = _FRAME.match(frame)
        if named is None:
            continue
        path = named["file"]
        for stage, parts in STAGES:
            if any(part in path for part in parts):
                return stage
    return OTHER


def budget(stacks: Stacks, us_per_entry: float) -> dict[str, float]:
    """Return microseconds per entry by stage, the dearest first: the process's CPU time by the share of samples."""
    total = sum(stacks.values())
    by_stage: Counter[str] = Counter()
    for stack, count in stacks.items():
        by_stage[stage_of(stack)] += count
    return {stage: round(us_per_entry * count / max(1, total), 3) for stage, count in by_stage.most_common()}


@dataclass
class _Node:
    """A frame with all that it called."""

    count: int = 0
    calls: dict[str, _Node] = field(default_factory=dict)

    def depth(self) -> int:
        return 1 + max((node.depth() for node in self.calls.values()), default=0)


def svg(title: str, processes: Mapping[str, Stacks]) -> str:
    """Return a flame graph of several processes side by side as SVG. The width of a frame is its share of time, callees
    stand above their caller. The pointer on a frame shows its name and share."""
    root = _Node()
    for name, stacks in processes.items():
        for stack, count in stacks.items():
            node = root
            node.count += count
            for frame in (name, *stack):
                node = node.calls.setdefault(frame, _Node())
                node.count += count
    height = (root.depth() + 2) * ROW
    boxes: list[str] = []
    _draw(root, 0.0, -1, height - ROW, max(1, root.count), boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="monospace" '
        f'font-size="{FONT}"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="4" y="{ROW - 4}">{escape(title)}</text>' + "".join(boxes) + "</svg>\n"
    )


def _draw(node: _Node, left: float, level: int, base: float, total: int, boxes: list[str]) -> None:
    for name, called in sorted(node.calls.items()):
        share = called.count / total
        if share >= NARROWEST:
            boxes.append(_box(name, left, share, base - (level + 2) * ROW))
            _draw(called, left, level + 1, base, total, boxes)
        left += share


def _box(name: str, left: float, share: float, top: float) -> str:
    width = share * WIDTH
    hue = int(hashlib.sha256(name.encode()).hexdigest()[:4], 16) % 50 + 10
    letters = int(width / (FONT * 0.62))
    shown = name if len(name) <= letters else name[: max(0, letters - 2)] + ".." if letters > 4 else ""
    label = f'<text x="{left * WIDTH + 2:.1f}" y="{top + ROW - 4:.1f}">{escape(shown)}</text>' if shown else ""
    return (
        f'<g><title>{escape(name)} {share:.2%}</title><rect x="{left * WIDTH:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{ROW - 1}" fill="hsl({hue},80%,65%)"/>{label}</g>'
    )


def table(budgets: Iterable[tuple[str, Mapping[str, float]]]) -> str:
    """Markdown: one table a process, and their sums."""
    lines = []
    for name, stages in budgets:
        lines += [f"## {name}", "", "| stage | us per entry |", "|---|---:|"]
        lines += [f"| {stage} | {value:.3f} |" for stage, value in stages.items()]
        lines += [f"| **sum** | {sum(stages.values()):.3f} |", ""]
    return "\n".join(lines)
