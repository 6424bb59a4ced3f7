"""The numbers of the first screen of a report, by the kind of run, and the shares that the verdict states too."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pandas as pd

from perfkit.analysis import calltree, communication, memory, steps
from perfkit.analysis.intervals import Window
from perfkit.analysis.readings import DEVICE, summary
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.interconnect import explained, ranks_connected, transports
from perfkit.diagnosis.lengths import lengths
from perfkit.diagnosis.logged import is_logged, window
from perfkit.diagnosis.recording import NOTABLE
from perfkit.diagnosis.timeline import idle_shares, named
from perfkit.diagnosis.words import words
from perfkit.format import duration, elided, number, percent, printable, several, size
from perfkit.names.parts import stall
from perfkit.selection import Selection

MOST_TILES = 6
FEWEST_TILES = 4
# Label of a tile and the figures that answer it, the first that a run has; what follows is a note with its figure.
# Those of FURTHER are shown only where a run has fewer tiles than that.
RATES, FURTHER = words("rate_tiles"), words("further_tiles")
TILES = [*words("tiles"), *RATES, *words("later_tiles")]
# The same, from tables, where there is no figure: label, metric of a log, whether the highest or the average, its text.
# What a log may hold: label, metric, whether the highest reading counts or the average, and its text.
Logged = tuple[str, str, bool, Callable[[float], str]]
# Of these a sentence can say what it was.
READ: tuple[Logged, ...] = (
    ("Highest power", "power_w", True, lambda watt: f"{number(watt)} W"),
    ("Highest memory", "memory_used_bytes", True, size),
    ("Highest temperature", "temperature_c", True, lambda degrees: f"{number(degrees)} °C"),
    ("Average SM clock", "sm_clock_hz", False, lambda hz: f"{number(hz / 1e6)} MHz"),
)
LOGGED: tuple[Logged, ...] = (
    *READ,
    ("Memory busy", "memory_busy_frac", False, percent),
    ("Memory active", "dram_active_frac", False, percent),
    ("Tensor cores active", "tensor_active_frac", False, percent),
    ("Average power", "power_w", False, lambda watt: f"{number(watt)} W"),
)
HARDWARE: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Memory", "memory_bytes", size),
    ("SMs", "sm_count", str),
    ("Memory bandwidth", "memory_bytes_per_s", lambda rate: f"{size(rate)}/s"),
)


@dataclass(frozen=True)
class Tile:
    """A number of the first screen: what it is, its text, a remark, and the figure behind it, None for a gain."""

    label: str
    value: str
    note: str
    figure: Figure | None = None

    def told(self) -> dict[str, str | None]:
        """Return the tile as values of JSON, with the id of its figure."""
        figure = self.figure.id if self.figure else None
        return {"label": self.label, "value": self.value, "note": self.note, "figure": figure}


def tiles(view: Selection, figures: Mapping[str, Figure], ends: Sequence[Tile]) -> list[Tile]:
    """Return at most six tiles, and four where the run holds that many numbers; `ends` come last.

    First the figures of TILES, then those of FURTHER, then numbers that no figure holds, from the tables.
    """
    span = next((figures[id].text for id in ("span_ns", "paths_wall_ns") if id in figures), "")
    texts = {**{id: figure.text for id, figure in figures.items()}, "span": span, "known": span}
    if "unknown_frac" in figures and figures["unknown_frac"].value >= NOTABLE:
        texts["known"] = f"the known part of {span}"
    else:
        figures = {**figures}
        figures.pop("unknown_frac", None)
    texts["of_steps"] = _of_steps(view, figures)
    texts["rate_of"] = _rate_of(figures)
    texts["of_memory"] = _of_memory(view)
    texts["of_copies"] = _of_copies(figures)
    if "roof_share_frac" in figures and figures["roof_share_frac"].value > 0:
        texts["to_roof"] = f"{number(1 / figures['roof_share_frac'].value)}x to the roof"
    texts["of_launches"] = _of_launches(figures)
    texts["readings"] = (
        "the only reading" if readings(view) == 1 else f"average of {readings(view):,} readings"
    )
    outside = _read(view, None) - _read(view, window(view))
    if outside:
        where = (
            "outside the timeline's judged part" if len(view.all_kernels) else "before and after"
        )
        texts["readings"] += f"; {outside:,} {where} do not count"
    first, further = (_answered(rows, figures, texts, view) for rows in (TILES, FURTHER))
    rates = {tile.value for tile in first}
    first += [tile for tile in _benchmarked(view) if tile.value not in rates]
    first = first or [*_connected(view)]
    said = {(tile.figure.id, tile.value) for tile in ends if tile.figure}
    first = [tile for tile in first if not tile.figure or (tile.figure.id, tile.value) not in said]
    few = max(FEWEST_TILES - len(first) - len(ends), 0)
    first += further[:few]
    shown = {tile.label for tile in (*first, *ends)}
    first += islice(
        (tile for tile in counted(view) if tile.label not in shown), few - len(further[:few])
    )
    return [*first[: MOST_TILES - len(ends)], *ends]


def _rate_of(figures: Mapping[str, Figure]) -> str:
    """Return what the rate of operations of a training is about."""
    passes = figures.get("baseline_flops_per_s")
    iteration = figures.get("baseline_iteration_flops_per_s")
    if iteration is None or passes is None:
        return "from the log"
    if iteration.text == passes.text:
        return "over the iteration"
    return f"over the iteration, {passes.text} in both passes"


def _of_copies(figures: Mapping[str, Figure]) -> str:
    """Return of what the share of copies in a profile of call paths is, and their share of the wall time."""
    copies, wall = figures.get("paths_copy_ns"), figures.get("paths_wall_ns")
    of_wall = f", {percent(copies.value / wall.value)} of the wall time" if copies and wall else ""
    return f"of the GPU's kernels and copies{of_wall}"


def _of_launches(figures: Mapping[str, Figure]) -> str:
    """Return how long the kernels of launches run, and what launching can cost of the wall time."""
    mean, cost = figures.get("paths_kernel_mean_ns"), figures.get("paths_launch_high_frac")
    runs = f"{mean.text} a kernel" if mean else "of kernels"
    return f"{runs}; launching takes at most {cost.text} of the wall time" if cost else runs


def _of_memory(view: Selection) -> str:
    """Return how much memory the largest GPU has, by the readings; empty where none says it."""
    totals = view.samples.loc[view.samples["metric"].eq("memory_total_bytes"), "value"]
    return f"of {size(float(totals.max()))}" if len(totals) else ""


def _of_steps(view: Selection, figures: Mapping[str, Figure]) -> str:
    """Return of how many steps, on how many ranks, the step time is the median; else of a log."""
    if "step_count" not in figures:
        return "of an iteration, in the log"
    count = figures["step_count"].text
    steady = steps.steady(view.steps)
    last = steps.last_phase(steady)
    ranks = steady["rank"].nunique()
    on_ranks = f" on {ranks:,} ranks" if ranks > 1 else ""
    if count == "1":
        return f"one step{on_ranks}"
    found = lengths(view)
    if found is not None:
        return f"median; {found.short_count:,} short and {found.long_count:,} long steps{on_ranks}"
    if len(last) < len(steady):
        return f"median of the last {steps.count(last):,} of {count} steps{on_ranks}"
    return f"median of {count} steps{on_ranks}"


def _answered(
    rows: Iterable[tuple[str, tuple[str, ...], str]],
    figures: Mapping[str, Figure],
    texts: Mapping[str, str],
    view: Selection,
) -> list[Tile]:
    """Return the tiles of the rows of TILES or FURTHER for which a run has a figure."""
    values = {id: figure.marked for id, figure in figures.items()}
    if "device_busy_frac" in figures:
        values["device_busy_frac"] = shares(view, "busy", figures["device_busy_frac"])
    tiles = []
    for label, ids, note in rows:
        for figure in [figures[id] for id in ids if id in figures][:1]:
            of = {**texts, "label": figure.label.lower(), "subject": stall(figure.subject)}
            of["of_gpus"] = f" of {figure.subject}" if figure.subject else ""
            tiles.append(Tile(label, values[figure.id], _noted(note, of), figure))
    return tiles


def _noted(note: str, texts: Mapping[str, str]) -> str:
    """Return a note with its texts; empty where one of them is missing."""
    try:
        return note.format(**texts)
    except KeyError:
        return ""


def shares(view: Selection, state: str, of_all: Figure) -> str:
    """Return the share of the time in which a GPU is "idle" or "busy", of several the smallest and the largest."""
    idle = idle_shares(view, "").dropna()
    by_gpu = idle if state == "idle" else 1 - idle
    if len(by_gpu) < 2 or percent(by_gpu.min()) == percent(by_gpu.max()):
        return of_all.marked
    return f"{percent(by_gpu.min())} to {percent(by_gpu.max())}"


def readings(view: Selection) -> int:
    """Return how often a log read a GPU, of several the most, beside the timeline if the run has one.

    What PyTorch notes of its memory is no log.
    """
    return _read(view, window(view))


def _read(view: Selection, part: Window | None) -> int:
    logged = view.samples[~view.samples["metric"].isin(memory.METRICS)]
    if part is not None:
        logged = logged[logged["time_ns"].between(*part, inclusive="left")]
    return int(logged.groupby(["rank", "gpu"])["time_ns"].nunique().max()) if len(logged) else 0


def read_in_log(view: Selection, rows: Sequence[Logged]) -> Iterator[Tile]:
    """Yield the highest or average reading of these rows of what a log of the GPUs holds."""
    read, count = summary(view.samples, window=window(view)), readings(view)
    gpus = len(view.samples[DEVICE].drop_duplicates())
    note = "the only reading" if count == 1 else f"of {count:,} readings"
    for label, metric, highest, text in rows:
        of = read[read["metric"].eq(metric)]
        if len(of):
            value = of["max"].max() if highest else of["mean"].mean()
            which = f" of {named_gpus(view, of)}" if len(of) < gpus else ""
            yield Tile(label, text(value), note + which)


def named_gpus(view: Selection, rows: pd.DataFrame) -> str:
    """Return the GPUs of these rows in words: those of a log, eight at most."""
    places = rows[DEVICE].drop_duplicates().iterrows()
    return several([named(place, view.samples) for _, place in places], 8)


def counted(view: Selection) -> Iterator[Tile]:
    """Yield what the tables of a small recording hold: its counters, readings, operators, calls and devices."""
    yield from _launched(view.launches)
    if is_logged(view):
        yield from read_in_log(view, LOGGED)
        yield Tile("Readings", f"{readings(view):,}", "of each GPU")
        yield Tile(
            "GPUs", f"{len(view.samples[['rank', 'gpu']].drop_duplicates()):,}", "in the log"
        )
    yield from _taken("operator", view.ops, "self_ns", "on the CPU")
    if len(view.run.threads):
        yield Tile("Threads", f"{view.run.threads['kind'].eq('cpu').sum():,}", "of the CPU")
        paths, metrics = view.run.calltree, view.run.call_metrics
        metric = calltree.host_metric(metrics)
        for most in (
            calltree.exclusive(paths, metrics, metric=metric).head(1).to_dict("records")
            if metric
            else ()
        ):
            yield Tile(
                "Main function",
                percent(most["share_frac"]),
                f"of the {calltree.host_time(metrics)}: {elided(most['name'], 40)}",
            )
        yield Tile("Calling contexts", f"{len(paths):,}", "in the call tree")
    links, timed = view.run.links, view.collectives
    if channels := links.loc[links["channel"] >= 0, "channel"].nunique():
        yield Tile("Channels", f"{channels:,}", "in the log")
        yield Tile(
            "Arrangement", " and ".join(sorted(links["kind"].unique())), "of the connections"
        )
    if len(timed):
        yield Tile("Longest time", duration(timed["dur_ns"].max()), "of a message")
        yield Tile("Sizes", f"{timed['bytes'].nunique():,}", "of messages")
        yield Tile("Measurements", f"{len(timed):,}", "in the log")
    yield from _taken("CUDA call", view.api_calls, "dur_ns", "on all threads")
    yield from _taken("OS call", view.run.os_calls, "dur_ns", "on all threads")
    for gpu in view.devices.head(1).to_dict("records"):
        yield Tile("GPUs", str(len(view.devices)), printable(gpu["name"], 40))
        for label, column, text in HARDWARE:
            if not pd.isna(gpu[column]):
                yield Tile(label, text(gpu[column]), "of a GPU")


def _launched(launches: pd.DataFrame) -> Iterator[Tile]:
    """Yield how far the measured launches are from their limits, averaged over their time, and the longest launch."""
    timed = launches[launches["dur_ns"].gt(0)]
    for label, column in (("Compute throughput", "sm_frac"), ("Memory throughput", "memory_frac")):
        measured = timed.dropna(subset=column)
        if len(measured):
            average = float(np.average(measured[column], weights=measured["dur_ns"]))
            yield Tile(label, percent(average), "of its peak")
    for longest in timed.nlargest(1, "dur_ns").to_dict("records"):
        yield Tile("Longest launch", duration(longest["dur_ns"]), elided(longest["name"], 40))
        if pd.notna(longest["grid_blocks"]) and pd.notna(longest["block_threads"]):
            yield Tile(
                "Its grid",
                f"{longest['grid_blocks']:,}",
                f"blocks of {longest['block_threads']:,} threads",
            )


def _taken(what: str, rows: pd.DataFrame, column: str, where: str) -> Iterator[Tile]:
    """Yield how many calls there are, how long they took, and which took longest."""
    if rows.empty:
        return
    took = rows.groupby("name", observed=True)[column].sum()
    yield Tile(f"{what[0].upper()}{what[1:]}s", f"{len(rows):,}", where)
    if total := took.sum():
        yield Tile(f"Time in {what}s", duration(total), where)
        yield Tile(
            f"Main {what}",
            percent(took.max() / total),
            f"of that time: {elided(took.idxmax(), 40)}",
        )
    yield Tile(
        "Threads",
        f"{len(rows[['rank', 'process', 'thread']].drop_duplicates()):,}",
        f"with {what}s",
    )


def _benchmarked(view: Selection) -> Iterator[Tile]:
    """Yield what a benchmark of collectives shows beside the rate of large messages."""
    timed = view.collectives[
        view.collectives["source"].eq("benchmark")
        & view.collectives["dur_ns"].gt(0)
        & view.collectives["bytes"].gt(0)
    ]
    if timed.empty:
        return
    quickest = timed.iloc[timed["dur_ns"].argmin()]
    rates = communication.summary(timed).dropna(subset="bus_bytes_per_s")
    for best in rates.nlargest(1, "bus_bytes_per_s").to_dict("records"):
        fastest = f"{size(best['bus_bytes_per_s'])}/s"
        yield Tile("Highest rate", fastest, f"bus bandwidth, messages of {size(best['bytes'])}")
    yield Tile(
        "Shortest time", duration(quickest["dur_ns"]), f"for a message of {size(quickest['bytes'])}"
    )
    if ranks := sorted(timed["ranks"].dropna().unique()):
        yield Tile(
            "Ranks",
            " to ".join(dict.fromkeys(f"{ranks[at]}" for at in (0, -1))),
            "in the benchmark",
        )


def _connected(view: Selection) -> Iterator[Tile]:
    """Yield how the ranks of an NCCL log are connected, where the log holds no other number."""
    links = view.run.links
    if links.empty:
        return
    yield Tile("Ranks", ranks_connected(links), "with connections in the log")
    yield Tile("Connections", f"{len(links):,}", "in the log")
    used = transports(view)
    for name, count in used.head(3).items():
        yield Tile(
            str(name),
            f"{count:,} of {used.sum():,}",
            f"connections {explained(str(name)).partition(' (')[0]}",
        )
