"""Plots of measurements as PNG files. Reads measurements; measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.java.runs import RATES

Rounds = Sequence[Mapping[str, Mapping[str, Any]]]
SIDES = (("Buckram", "ours>ours", "tab:blue"), ("Apache BookKeeper", "apache-2>apache", "tab:orange"))

KEPT_UP = 0.95
"""Share of an offered rate that must be reached; beyond the limit a latency only reflects the duration of the load."""


def values(rounds: Rounds, key: str, name: str) -> list[float]:
    """Return a value of a measurement in each round that has it."""
    return [float(runs[key][name]) for runs in rounds if key in runs and name in runs[key]]


def draw(rounds: Rounds, scale: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Draw the plots that there are data for; return titles by file name. `scale`: figures of our own scale cases by
    case."""
    plots: dict[str, tuple[str, Callable[[Axes], bool]]] = {
        "bench-throughput.png": ("Latency over throughput, 1 KB", lambda axes: _throughput(axes, rounds)),
        "bench-latency.png": ("Latency at 5,000 adds/s", lambda axes: _percentiles(axes, rounds)),
        "bench-cpu.png": ("CPU per add, client and three bookies", lambda axes: _cpu(axes, rounds)),
        "bench-scale.png": ("Cost of an add as a bookie grows", lambda axes: _scale(axes, scale)),
    }
    drawn = {}
    for name, (title, plot) in plots.items():
        figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        if plot(axes):
            figure.savefig(folder / name, dpi=100, metadata={"Software": None})
            drawn[name] = title
        plt.close(figure)
    return drawn


def _throughput(axes: Axes, rounds: Rounds) -> bool:
    found = False
    for label, side, color in SIDES:
        for share, style in (("p50_ms", "-"), ("p99_ms", "--")):
            points = [
                (statistics.median(rates), statistics.median(values(rounds, key, share)))
                for rate in RATES
                if (rates := values(rounds, key := f"rate-{rate}:{side}", "per_s"))
                and statistics.median(rates) > KEPT_UP * rate
            ]
            if points:
                found = True
                axes.plot(*zip(*points, strict=True), style, marker="o", color=color, label=f"{label}, {share[:3]}")
    axes.set(xlabel="adds a second, one ledger", ylabel="milliseconds", xscale="log", yscale="log")
    axes.legend()
    return found


def _percentiles(axes: Axes, rounds: Rounds) -> bool:
    found = False
    for label, side, color in SIDES:
        key = f"paced:{side}"
        spectra = [runs[key]["latency_ms"] for runs in rounds if "latency_ms" in runs.get(key, {})]
        if not spectra:
            continue
        found = True
        shares = sorted(spectra[0], key=float)
        middle = [statistics.median(float(spectrum[share]) for spectrum in spectra) for share in shares]
        axes.plot([1 / (1 - float(share)) for share in shares], middle, marker=".", color=color, label=label)
    ticks = (0.5, 0.9, 0.99, 0.999, 0.9999)
    axes.set(xlabel="percentile", ylabel="milliseconds", xscale="log", yscale="log")
    axes.set_xticks([1 / (1 - tick) for tick in ticks], [f"{100 * tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend()
    return found


def _cpu(axes: Axes, rounds: Rounds) -> bool:
    cases = (("one", "one ledger"), ("small", "one ledger, 100 B"), ("hundred", "100 ledgers"))
    found, width = False, 0.36
    for number, (label, side, color) in enumerate(SIDES):
        for place, (case, _) in enumerate(cases):
            client = values(rounds, f"{case}:{side}", "client_us")
            servers = values(rounds, f"{case}:{side}", "servers_us")
            if not client:
                continue
            at, low, high = place + (number - 0.5) * width, statistics.median(client), statistics.median(servers)
            axes.bar(at, low, width, color=color, label=f"{label}, client" if not place else None)
            axes.bar(at, high, width, low, color=color, alpha=0.5, label=f"{label}, bookies" if not place else None)
            found = True
    axes.set_xticks(range(len(cases)), [name for _, name in cases])
    axes.set_ylabel("microseconds")
    if found:
        axes.legend()
    return found


def _scale(axes: Axes, scale: Mapping[str, Mapping[str, Any]]) -> bool:
    """Bookie's CPU of an add, as a ratio to the smallest size."""
    found = False
    cases = (("scale_ledgers", "ledgers"), ("scale_connections", "connections"), ("scale_store", "GB stored"))
    for case, label in cases:
        costs = {
            float(name.rpartition("_")[2]): float(value)
            for name, value in scale.get(case, {}).items()
            if name.startswith("bookie_cpu_us_at_")
        }
        if costs:
            found = True
            sizes = sorted(costs)
            axes.plot(
                [size / sizes[0] for size in sizes], [costs[size] / costs[sizes[0]] for size in sizes], marker="o",
                label=f"{label}, from {sizes[0]:,.0f} to {sizes[-1]:,.0f}",
            )  # fmt: skip
    axes.set(xlabel="size, through the smallest", ylabel="bookie's CPU of an add, the same way", xscale="log")
    axes.set_ylim(bottom=0)
    if found:
        axes.legend()
    return found
