"""The first screen of a report: the verdict in one or two sentences, and the numbers that a reader asks for first.

The verdict is that of the finding with the largest achievable gain (`ranked`); a run without findings is described by
the number that its recording answers best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from perfkit.analysis import communication, timeline
from perfkit.diagnosis.finding import CONFIDENCES, LEAST, SEVERITIES, WIDE, Figure, Finding, Gain
from perfkit.diagnosis.replayed import together
from perfkit.diagnosis.rules import rules
from perfkit.diagnosis.timeline import too_few
from perfkit.format import duration, number, percent, printable, size
from perfkit.selection import Selection

MOST_TILES = 6
FAILED = "The run failed"  # how the verdict begins where a reader's note says so
# What a reader who does not know NCCL learns from the first part of a transport's name.
WAYS = {"NET": "cross the network", "P2P": "go from GPU to GPU in a node", "SHM": "go through the CPU's memory"}
FIELD = re.compile(r"{(\w+)}")
TIMED = {"span_ns", "paths_wall_ns"}  # of a run whose time is known
CLOSE = 1.1  # a range this narrow is one number
NOTABLE = 0.05  # of the time
VENDOR = re.compile(r"^(?:NVIDIA|AMD|Tesla|GeForce|Radeon|\s)+")
MEMORY = re.compile(r"[- ]+(?:SXM\d?|PCIe|PCIE|NVL|\d+ ?GB|HBM\d\w*)\b.*")
# Label of a tile and the figures that answer it, the first that a run has; what follows is a note with its figure.
TILES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("GPU busy", ("device_busy_frac", "paths_gpu_busy_frac"), "of {span}"),
    ("GPU busy", ("log_gpu_busy_frac",), "{readings}"),
    ("Step time", ("step_median_ns", "baseline_step_ns"), "{of_steps}"),
    ("Throughput", ("job_tokens_per_s", "baseline_tokens_per_s", "job_samples_per_s", "baseline_samples_per_s"), ""),
    ("MFU", ("job_mfu_frac", "baseline_mfu_frac"), "share of the arithmetic peak"),
    ("Cost of idle time", ("job_idle_cost_per_h",), "at the price you gave"),
    ("All-reduce", ("baseline_all_reduce_bytes_per_s",), "bus bandwidth"),
    ("All-gather", ("baseline_all_gather_bytes_per_s",), "bus bandwidth"),
    ("Reduce-scatter", ("baseline_reduce_scatter_bytes_per_s",), "bus bandwidth"),
    ("All-to-all", ("baseline_alltoall_bytes_per_s", "baseline_all_to_all_bytes_per_s"), "bus bandwidth"),
    ("Broadcast", ("baseline_broadcast_bytes_per_s",), "bus bandwidth"),
    ("Share of the line rate", ("baseline_all_reduce_ratio", "baseline_all_to_all_ratio"), "of the links of a GPU"),
    ("Arithmetic of a GPU", ("baseline_flops_per_s",), "from the log"),
    ("Optimizer", ("baseline_optimizer_frac",), "of an iteration"),
    ("SMs active", ("log_sm_active_frac",), "{readings}"),
    ("Pipes active", ("log_pipe_active_frac",), "{readings}"),
    ("Clock lowered", ("log_throttled_frac",), "of the time"),
    ("Highest power", ("log_power_0_0_frac",), "of the limit"),
    ("Highest memory", ("log_memory_0_0_frac",), "of what the GPU has"),
    ("Kernels measured", ("measured_count",), "{measured_dur_ns} in all"),
    ("Share of the roof", ("roof_share_frac",), "of what memory and pipes allow"),
    ("Occupancy", ("achieved_occupancy_frac",), "{theoretical_occupancy_frac} possible"),
    ("Main stall", ("main_stall_frac",), "{label}"),
    ("CPU time", ("paths_host_ns",), "of all threads"),
    ("Copies", ("paths_copy_frac",), "of the GPU's time"),
    ("Average kernel", ("paths_kernel_mean_ns",), "{paths_launch_count} launches"),
    ("GPUs", ("baseline_gpu_count",), "in the job"),
)
FEWEST_TILES = 4
# The same, shown only where a run has fewer tiles than that.
FURTHER: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Kernels", ("kernel_count",), "{kernel_mean_ns} on average"),
    ("Short kernels", ("short_kernel_frac",), "of the kernels take under 10 µs"),
    ("Operators", ("op_count",), "on the CPU"),
    ("Performance", ("measured_flops_per_s",), "of the measured kernels"),
    ("DRAM traffic", ("measured_dram_bytes",), "of the measured kernels"),
    ("Kernel time", ("paths_kernel_ns",), "{paths_launch_count} launches"),
    ("Wall time", ("paths_wall_ns",), "of the program"),
)
# Of a run without findings: figures that a sentence needs, and the sentence.
SENTENCES: tuple[tuple[str, str], ...] = (
    ("device_busy_frac", "{who} busy {device_busy_frac} of the time. No finding costs 10 % of the time or more."),
    ("baseline_step_ns", "One training step takes {baseline_step_ns}. The log shows no problem."),
    *(
        (id, f"{label} reaches {{{id}}} of bus bandwidth with large messages.")
        for label, ids, note in TILES
        for id in ids
        if note == "bus bandwidth"
    ),
    ("log_gpu_busy_frac", "{logged}"),
    ("roof_share_frac", "The measured kernels reach {roof_share_frac} of their roof."),
    ("achieved_occupancy_frac", "The measured kernels reach {achieved_occupancy_frac} occupancy."),
    (
        "log_sm_active_frac",
        "The SMs were active {log_sm_active_frac} of the time. No check of the log needs attention.",
    ),
    ("measured_count", "Measured launches: {measured_count}, {measured_dur_ns} in all. No finding follows from them."),
    ("paths_gpu_busy_frac", "The GPU worked {paths_gpu_busy_frac} of the wall time. No finding costs 10 % of it."),
    ("paths_host_ns", "The program used {paths_host_ns} of CPU time. No GPU work was recorded."),
)
NOTHING_COSTS = "No finding costs a tenth of the time or more."
NOTHING_IN_THE_LOG = "No check of the log needs attention. The last section lists what a log cannot answer."
AFTER_A_FAILURE = (
    "Find the rank that stopped first: compare the last lines that each rank printed. To see what each rank waited "
    "for, run the program again with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1."
)
MEASURED = "perfkit found no problem in these measurements. To find causes, record a timeline of the program."
NO_GPU = "perfkit found no problem in this recording. It holds no work of a GPU: the last section says what to record."


@dataclass(frozen=True)
class Tile:
    """A number of the first screen: what it is, its text, a remark, and the figure behind it, None for a gain."""

    label: str
    value: str
    note: str
    figure: Figure | None = None


@dataclass(frozen=True)
class Headline:
    """The verdict in words, and the numbers next to the verdict, the most asked for first."""

    verdict: str
    tiles: tuple[Tile, ...]


def headline(view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding]) -> Headline:
    """Return the verdict of a run and at most six tiles. `figures` and `findings` are those of the same selection."""
    of_run = [f.gain for f in findings if f.gain.whole == Gain.whole]
    best = together(findings, figures, view) or max(of_run, key=achievable, default=None)
    tiles = _tiles(view, figures, findings, None if too_few(view) else best)
    verdict = f"{FAILED}: {error}." if (error := failure(view)) else _verdict(view, figures, findings, best)
    return Headline(verdict, tuple(tiles)[:MOST_TILES])


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by the gain that can be achieved, the middle of the time saved; low confidence comes last.

    Before all comes warm-up where it is most of what was measured: it hides what the steady steps need. What a
    computing GPU could save is what all else costs, and other findings name that: it counts for no more than NOTABLE.
    """
    return sorted(findings, key=lambda f: (not _hides(f), f.confidence == CONFIDENCES[-1], -_weight(f)))


def leading(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings as `ranked`, but not what saves less than 1 % of the time, unless it is all there is."""
    order = ranked(findings)
    return [f for f in order if not 1 < f.gain.high < LEAST] or order[:1]


def _weight(finding: Finding) -> float:
    saved = achievable(finding.gain)
    return min(saved, NOTABLE) if finding.rule == "computation" else saved


def _hides(finding: Finding) -> bool:
    return finding.rule == "warm_up" and finding.severity == SEVERITIES[0]


def achievable(gain: Gain) -> float:
    """Return the share of the time that a gain saves, the middle of its range; 0 where it is not known.

    >>> achievable(Gain(1.0, 2.0, "")), achievable(Gain(1.0, math.inf, ""))
    (0.25, 0.0)
    """
    best = gain.high if math.isfinite(gain.high) else gain.low
    return ((1 - 1 / gain.low) + (1 - 1 / best)) / 2


def speaking(gain: Gain) -> str:
    """Return what mending the cause gains, as a sentence.

    >>> speaking(Gain(4.5, 4.7, "")), speaking(Gain(1.0, 1.5, "")), speaking(Gain(1.0, 1.004, ""))
    ('Fixing this makes the run about 4.6 times faster.', 'Fixing this makes the run at most 1.5 times faster.', \
'Fixing this saves less than 1 % of the time.')
    """
    if not gain.is_known:
        return f"The recording does not show how much faster {gain.whole} can get."
    if gain.high < LEAST:
        return "Fixing this saves less than 1 % of the time." if gain.high > 1 else ""
    if gain.low < LEAST:
        return f"Fixing this makes {gain.whole} at most {_times(gain.high)} faster."
    if gain.high / gain.low < CLOSE:
        return f"Fixing this makes {gain.whole} about {_times(math.sqrt(gain.low * gain.high))} faster."
    return f"Fixing this makes {gain.whole} {gain.low:.{1 if gain.low >= CLOSE else 2}f} to {_times(gain.high)} faster."


def _times(factor: float) -> str:
    if factor < CLOSE:
        return percent(factor - 1)
    return f"{number(factor) if factor >= 10 else f'{factor:.1f}'} times"


def _verdict(view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding], best: Gain | None) -> str:
    if not findings:
        texts = {**{id: figure.text for id, figure in figures.items()}, "who": _who(view, figures)}
        if "log_gpu_busy_frac" in figures:
            texts["logged"] = _logged(view, figures["log_gpu_busy_frac"])
        return next((text.format(**texts) for id, text in SENTENCES if id in figures), _only_recorded(view))
    if why := too_few(view):
        return f"{why}. Record more of the program before you optimise it."
    # The cause of over twice as much idle time goes before the first finding.
    first = ranked(findings)[0]
    causes = [f for f in findings if rules()[f.rule].reason and f.gain.share]
    most = max(causes, key=lambda f: f.gain.share or 0.0, default=first)
    first = most if first in causes and (most.gain.share or 0.0) > 2 * (first.gain.share or 0.0) else first
    reason = rules()[first.rule].reason
    if reason and "idle_frac" in figures:
        share = percent(first.gain.share) if first.gain.share else ""
        part = f": {share} " if share and share != figures["idle_frac"].text else " "
        part += "probably because" if first.confidence == CONFIDENCES[-1] else "because"
        said = f"{_who(view, figures)} idle {_shares(view, 'idle', figures['idle_frac'])} of the time{part} {reason}."
    else:
        said = f"{first.title}."
        said += " Record steady steps before you optimise the program." if _hides(first) else ""
    is_timed = TIMED & set(figures) or first.gain.high < WIDE
    return f"{said} {_mended(first, best) if is_timed else ''}".strip()


def _mended(finding: Finding, best: Gain | None) -> str:
    """Return what mending a cause gains; of a GPU that computes, what all findings leave to gain."""
    if finding.rule != "computation":
        return speaking(finding.gain)
    if best and best.high > CLOSE * finding.gain.high:
        return f"Fixing all findings makes {best.whole} at most {_times(best.high)} faster."
    rest = "" if finding.gain.high < LEAST else f"All else costs at most {percent(1 - 1 / finding.gain.high)}. "
    return f"{rest}Only faster or fewer kernels make the run much faster."


def nothing_found(figures: Collection[str]) -> str:
    """Return why there is no finding: nothing costs much, or what was recorded cannot show what does."""
    if "span_ns" in figures or "measured_count" in figures:
        return NOTHING_COSTS
    if any(name.startswith("log_") for name in figures):
        return NOTHING_IN_THE_LOG
    return MEASURED if any(name.startswith("baseline_") for name in figures) else NO_GPU


def _readings(view: Selection) -> int:
    """Return how often a log read a GPU, of several the most."""
    return int(view.samples.groupby(["rank", "gpu"])["time_ns"].nunique().max()) if len(view.samples) else 0


def _logged(view: Selection, busy: Figure) -> str:
    """Return what a log of the GPUs says in which no check needs attention."""
    is_one = _readings(view) == 1
    if not busy.value:
        of = "the only reading" if is_one else f"{_readings(view):,} readings"
        return f"No kernel ran during {of} of the log. Record the log again while the program runs."
    ran = f"{'At the only reading, a' if is_one else 'A'} kernel ran {busy.text} of the time."
    return f"{ran} No check of the log needs attention."


def failure(view: Selection) -> str:
    """Return how a run failed, in the words of its log; empty if no log says so."""
    said = (note.partition(": the run failed: ")[2] for note in view.run.notes)
    return printable(next(filter(None, said), "").rstrip("."), 240)


def _only_recorded(view: Selection) -> str:
    """Return what is known of a run that has neither a finding nor a figure that sums it up."""
    links = view.run.links
    if len(links):
        ranks = len({*links["from_rank"], *links["to_rank"]})
        used = _transports(view)
        listed = ", ".join(f"{count:,} {_explained(str(name))}" for name, count in used.items())
        of = f": of {used.sum():,} connections with a known transport, {listed}." if listed else "."
        return f"NCCL connected {ranks} ranks{of}"
    timed = view.collectives[view.collectives["source"].eq("benchmark")]
    if len(timed):
        names = ", ".join(sorted({str(name).replace("_", "-") for name in timed["operation"].dropna()}))
        sizes = " to ".join(dict.fromkeys(size(end) for end in (timed["bytes"].min(), timed["bytes"].max())))
        return f"The benchmark timed {names} with messages of {sizes}. The log does not show the bus bandwidth."
    if len(view.ops):
        return f"The recording holds {len(view.ops):,} operators of the CPU and no work of a GPU."
    names = ", ".join(sorted({printable(name, 60) for name in view.devices["name"]}))
    return f"The recording describes {names or 'a machine'}, but no work of a program."


def _who(view: Selection, figures: Mapping[str, Figure]) -> str:
    """Return the GPUs of a run as the subject of a sentence about the past, with its verb.

    >>> _shorter("NVIDIA A100-SXM4-80GB"), _shorter("NVIDIA H100 80GB HBM3"), _shorter("NVIDIA GeForce RTX 4090")
    ('A100', 'H100', 'RTX 4090')
    """
    names = {_shorter(str(name)) for name in view.devices["name"]}
    count = int(figures["gpu_count"].value) if "gpu_count" in figures else 1  # of these GPUs, that many worked
    one = next(iter(names)) if len(names) == 1 else ""
    if count > 1:
        return f"The {count} {f'{one} ' if one else ''}GPUs were"
    return f"The {one} was" if one else "The GPU was"


def _shorter(name: str) -> str:
    return printable(MEMORY.sub("", VENDOR.sub("", name)).strip(), 40) or "GPU"


def _shares(view: Selection, state: str, of_all: Figure) -> str:
    """Return the share of the time in which a GPU is "idle" or "busy", of several the smallest and the largest."""
    parts = timeline.breakdown(view.kernels, view.copies, window=view.measured, others=view.other_kernels)
    shares = (parts["idle_ns"] / parts["span_ns"]).dropna()
    shares = shares if state == "idle" else 1 - shares
    if len(shares) < 2 or percent(shares.min()) == percent(shares.max()):
        return of_all.marked
    return f"{percent(shares.min())} to {percent(shares.max())}"


def _tiles(
    view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding], gain: Gain | None
) -> Iterator[Tile]:
    span = next((figures[id].text for id in ("span_ns", "paths_wall_ns") if id in figures), "")
    texts = {**{id: figure.text for id, figure in figures.items()}, "span": span}
    count = figures["step_count"].text if "step_count" in figures else ""
    texts["of_steps"] = "one step" if count == "1" else f"median of {count} steps" if count else ""
    texts["readings"] = "the only reading" if _readings(view) == 1 else f"average of {_readings(view):,} readings"
    known, further = (_answered(rows, figures, texts, view) for rows in (TILES, FURTHER))
    known = [*known, *_benchmarked(view)] or [*_connected(view)]
    is_priced = "job_idle_cost_per_h" in figures  # then the loss stands in the verdict alone
    costly = max((f for f in findings if f.gain.share and f.evidence), key=lambda f: f.gain.share or 0.0, default=None)
    losses = []
    if costly and not is_priced:
        share = percent(costly.gain.share or 0.0)
        losses.append(Tile("Largest loss", share, theme(costly.rule), costly.evidence[0]))
    gains = [Tile("Possible gain", *_gain(gain))] if gain and gain.is_known and gain.high >= LEAST else []
    ends = len(losses) + len(gains)
    known += further[: max(FEWEST_TILES - len(known) - ends, 0)]
    yield from known[: MOST_TILES - ends]
    yield from [*losses, *gains]


def _answered(
    rows: Iterable[tuple[str, tuple[str, ...], str]],
    figures: Mapping[str, Figure],
    texts: Mapping[str, str],
    view: Selection,
) -> list[Tile]:
    """Return the tiles of the rows of TILES or FURTHER for which a run has a figure."""
    tiles = []
    for label, ids, note in rows:
        figure = next((figures[id] for id in ids if id in figures), None)
        if figure is not None:
            of = {**texts, "label": figure.label.rpartition(": ")[2]}
            is_whole = all(of.get(name) for name in FIELD.findall(note))
            rate = f"{number(figure.value)}/s" if figure.unit == "1/s" else figure.marked
            rate = _shares(view, "busy", figure) if figure.id == "device_busy_frac" else rate
            remark = figure.label.lower() if figure.unit == "1/s" else note.format(**of) if is_whole else ""
            tiles.append(Tile(label, rate, remark, figure))
    return tiles


def _benchmarked(view: Selection) -> Iterator[Tile]:
    """Yield what a benchmark of collectives shows beside the rate of large messages."""
    timed = view.collectives[view.collectives["source"].eq("benchmark") & view.collectives["dur_ns"].gt(0)]
    if timed.empty:
        return
    quickest = timed.iloc[timed["dur_ns"].argmin()]
    rates = communication.summary(timed).dropna(subset="bus_bytes_per_s")
    for best in rates.nlargest(1, "bus_bytes_per_s").to_dict("records"):
        fastest = f"{size(best['bus_bytes_per_s'])}/s"
        yield Tile("Highest rate", fastest, f"bus bandwidth, messages of {size(best['bytes'])}")
    yield Tile("Shortest time", duration(quickest["dur_ns"]), f"for a message of {size(quickest['bytes'])}")
    if ranks := sorted(timed["ranks"].dropna().unique()):
        yield Tile("Ranks", " to ".join(dict.fromkeys(f"{ranks[at]}" for at in (0, -1))), "in the benchmark")


def _connected(view: Selection) -> Iterator[Tile]:
    """Yield how the ranks of an NCCL log are connected, where the log holds no other number."""
    links = view.run.links
    if links.empty:
        return
    yield Tile("Ranks", str(len({*links["from_rank"], *links["to_rank"]})), "with connections in the log")
    yield Tile("Connections", f"{len(links):,}", "of all channels")
    used = _transports(view)
    for name, count in used.head(3).items():
        yield Tile(str(name), f"{count:,} of {used.sum():,}", f"connections {_explained(str(name)).partition(' (')[0]}")


def _transports(view: Selection) -> pd.Series:
    """Return how many connections use each transport, the most used first."""
    used = view.run.links["transport"].dropna().astype("string").str.split("/").str[:2].str.join("/")
    return used.value_counts()


def _explained(transport: str) -> str:
    """Return where a connection with one of NCCL's transports runs.

    >>> _explained("NET/IB"), _explained("P2P/CUMEM"), _explained("NVLS")
    ('cross the network (NET/IB)', 'go from GPU to GPU in a node (P2P/CUMEM)', 'use NVLS')
    """
    way = WAYS.get(transport.partition("/")[0])
    return f"{way} ({transport})" if way else f"use {transport}"


def theme(rule: str) -> str:
    """Return what a rule is about, in words.

    >>> theme("idle_data_loading"), theme("paths_gpu_idle"), theme("idle")
    ('data loading', 'GPU idle', 'idle')
    """
    words = rule.removeprefix("idle_").removeprefix("paths_").replace("_", " ")
    return re.sub(r"\b(gpu|mfu|cuda)\b", lambda found: found[1].upper(), words)


def _gain(gain: Gain) -> tuple[str, str]:
    """Return the value and the remark of the tile of gains."""
    if gain.low < LEAST:
        return f"up to {gain.best}", "best case, all findings fixed"
    return gain.likely, f"likely, all findings fixed; best case {gain.best}"


def saved(gain: Gain, figures: Mapping[str, Figure]) -> str:
    """Return the time that a gain saves in a step, or else in the run, from the likely to the best case; or nothing."""
    named = (("step_median_ns", "step"), ("span_ns", "run"))
    id, what = next(((id, what) for id, what in named if id in figures and not _is_outside(id, figures)), ("", ""))
    if not id or gain.whole != Gain.whole or gain.high < LEAST or not gain.is_known:
        return ""
    whole = figures[id].value
    ends = [duration(whole * (1 - 1 / factor)) for factor in (gain.low, gain.high) if factor >= LEAST]
    return f"{' to '.join(dict.fromkeys(ends))} per {what}"


def _is_outside(id: str, figures: Mapping[str, Figure]) -> bool:
    """Tell whether steps take longer than the work of the GPU, of which a gain is a share."""
    if id != "step_median_ns" or not {"span_ns", "step_count"} <= set(figures):
        return False
    return figures[id].value * figures["step_count"].value > 2 * figures["span_ns"].value
