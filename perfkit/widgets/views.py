"""The pictures and tables of the notebooks, one call each: still of a choice, live of an explorer.

A `source` is a `perfkit.Selection` or an explorer. Where nothing was recorded, a view says how to record it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pandas as pd

from perfkit import analysis, charts, diagnosis
from perfkit import run as perfkit_run
from perfkit.analysis.intervals import cut
from perfkit.analysis.owners import in_words
from perfkit.analysis.ownership import Owners
from perfkit.charts.icicle import OWNED
from perfkit.charts.theme import CAUSE_NAMES, DETAIL_NAMES
from perfkit.diagnosis import machine as diagnosis_machine
from perfkit.diagnosis.timeline import owners_of
from perfkit.errors import PerfkitError
from perfkit.format import percent, several
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets import live
from perfkit.widgets.comparison import compare
from perfkit.widgets.live import Live, Part, Shown, follows, shown
from perfkit.widgets.needs import RECORD, some

if TYPE_CHECKING:
    import ipywidgets

    from perfkit.analysis.causes import Determinable
    from perfkit.widgets.choice import Explorer

__all__ = [
    "call_paths",
    "collectives",
    "compare",
    "gaps",
    "kernels",
    "machine",
    "memory",
    "operators",
]
__all__ += ["ownership", "ranks", "roofline", "timeline", "training", "transfers"]

OPERATOR_COLUMNS = [
    "name",
    "count",
    "cpu_self_ns",
    "gpu_self_ns",
    "gpu_total_ns",
    "kernel_count",
    "gpu_share_frac",
]
ALONE = f"The run has one rank and no collective. To compare ranks, record every rank: {RECORD['COLLECTIVES']}."
SIZELESS = (
    "The run has one rank. Its kernels of communication are in the table above, without the sizes of messages. To "
    f"compare ranks, record every rank: {RECORD['COLLECTIVES']}."
)
UNMATCHED = (
    "perfkit cannot tell which rank waits: this needs collectives of several ranks, recorded over the same steps. "
    "Choose all ranks, or record them."
)
PATH_COLUMNS = ["depth", "name", "kind", "inclusive", "unit", "share_frac"]
NO_GPU = "No GPU operation was recorded. What records them: hpcrun -e gpu=nvidia,pc."
NO_HOST = "No CPU time was recorded. What records it: hpcrun -e CPUTIME."
FUNCTION_COLUMNS = ["name", "kind", "count", "exclusive", "unit", "share_frac"]
_MADE: WeakKeyDictionary[Run, list[Part]] = WeakKeyDictionary()
STILL_BINS = 320
KERNEL_COLUMNS = [
    "name",
    "family",
    "count",
    "total_ns",
    "share_frac",
    "mean_ns",
    "median_ns",
    "min_ns",
    "max_ns",
]
OWNER_COLUMNS = [
    "name",
    "count",
    "exclusive_ns",
    "exclusive_frac",
    "inclusive_ns",
    "inclusive_frac",
]
# What owns the GPU's time: its name, the table, and whether the framework's profiler recorded it.
OWNERS = {
    "range": ("ranges", "RANGES", False),
    "phase": ("ranges", "RANGES", False),
    "operator": ("operators", "OPS", True),
    "module": ("modules", "PYTHON_CALLS", True),
    "line": ("Python functions", "PYTHON_CALLS", True),
}
_OWNERS: WeakKeyDictionary[Run, dict[str, live.Later[Owners]]] = WeakKeyDictionary()
GAP_COLUMNS = ["rank", "gpu", "start_ns", "dur_ns", "cause", "owner", "api", "range"]
PLACE = ("rank", "gpu")
MOST_GPUS = 4  # named in a cell
COPY_KEYS = ("direction", "src_memory", "dst_memory")
COPY_COLUMNS = [
    *COPY_KEYS,
    "count",
    "bytes",
    "total_ns",
    "bytes_per_s",
    "median_bytes",
]
CEILINGS = "Peaks of the GPU by its data sheet, and as measured (--peaks)"
PLATEAU = ["operation", "ranks", "placement", "largest_bytes", "bus_bytes_per_s", "growth_frac"]
SHARE = ["rank", "peak_flops_per_s", "forward_frac", "mfu_frac", "note"]
ONE_SIZE = "How the training scales takes logs of it on several numbers of GPUs, in one folder."
LOST = {"outside": "launched where none was open", "none": "without a recorded launch call"}
PLACES = [
    "launch",
    "name",
    "precision",
    "flops",
    "dram_bytes",
    "dur_ns",
    "flops_per_s",
    "roof_share_frac",
]
VERDICTS = ["launch", "name", "bound", "reason"]


def operators(source: Selection | Explorer, *, by: str = "name", top: int = 12) -> Shown | Live:
    """Show where the time goes by operator: CPU and GPU time as bars, all operators in a table.

    `by`: what the table has rows of: ``name``, or ``shapes`` for each name and shapes of inputs.
    `top`: most bars, at least 1. Raises ValueError if `by` is neither.
    """
    if by not in ("name", "shapes"):
        raise ValueError(f"by: {by!r} is neither 'name' nor 'shapes'")
    return shown(source, lambda view: _operators(source, view, by, top))


@follows
def memory(view: Selection) -> list[Part]:
    """Show how much memory tensors occupied and the framework's allocator held, over time."""
    view = view.framework
    readings = analysis.memory.timeline(view.samples, window=view.window)
    held = analysis.memory.timeline(view.run.samples)
    some(
        readings,
        view,
        "SAMPLES.memory",
        "readings of the allocator's memory",
        recorded=bool(len(held)),
    )
    peaks = analysis.memory.peak(view.samples, window=view.window)
    shown: list[Part] = [charts.operators.memory(analysis.memory.bins(readings), peaks)]
    if len(
        changes := analysis.memory.by_operator(view.run.samples, view.run.ops, window=view.window)
    ):
        caption = "Memory that operators allocate and release themselves; without a name: outside of a single operator"
        shown.append(charts.tables.searchable(changes, caption=caption))
    return shown


def _operators(source: Selection | Explorer, view: Selection, by: str, top: int) -> list[Part]:
    some(view.framework.run.ops, view, "OPS", "operators")
    summary = some(live.operators(source, view, by="name"), view, "OPS", "operators")
    time = "GPU time" if summary["gpu_total_ns"].any() else "CPU time of their own"
    columns, rows, caption = OPERATOR_COLUMNS, summary, f"Operators by {time}, with what they call"
    if by == "shapes":
        columns = ["name", "shapes", *OPERATOR_COLUMNS[1:]]
        rows = live.operators(source, view, by=("name", "shapes"))
        caption = f"Operators and shapes of their inputs by {time}, with what they call"
    rows = rows.assign(name=rows["name"].astype(object).fillna("no operator recorded"))
    return [
        charts.operators.bars(summary, top=top),
        charts.tables.searchable(rows, columns=columns, caption=caption),
    ]


def ownership(source: Selection | Explorer, *, part: str = "range") -> Shown | Live:
    """Show who owns the GPU's time: paths as an icicle, owners in a table, and which share has no owner.

    `part`: ``range`` (NVTX ranges, profiler steps, annotations), ``phase`` (prefill, decode, forward, backward,
    optimizer, as far as names say so), ``operator``, ``module`` or ``line`` (functions of the Python program). Raises
    ValueError if it is none of them.
    """
    if part not in OWNERS:
        raise ValueError(f"part: {part!r} is not one of {', '.join(OWNERS)}")
    return shown(source, lambda view: _ownership(source, view, part))


def _ownership(source: Selection | Explorer, view: Selection, part: str) -> list[Part]:
    what, table, is_framework = OWNERS[part]
    traced = view.framework if is_framework else view
    some(traced.run.table(table), view, table, what)
    rows, window = live.positions(traced.kernels, traced.run.kernels), traced.window
    index = _owners(source, traced.run, part)
    summary = index.summary(window=window, kernels=rows)
    if summary.empty:
        some(
            traced.run.kernels.iloc[:0],
            view,
            "KERNELS",
            "kernels",
            recorded=len(traced.run.kernels) > 0,
        )
    share = index.coverage(window=window, kernels=rows).set_index("how")["share_frac"]
    owner = OWNED.get(part, part)
    lost = [f"{percent(share[how])} {why}" for how, why in LOST.items() if share[how] > 0]
    sentence = (
        f"Time of kernels with a known {owner}: "
        f"{percent(1 - share['outside'] - share['none'])} of all kernel time"
    )
    sentence += f" ({percent(share['main'])} through the main thread)" * bool(share["main"] > 0)
    sentence += f". Without: {', '.join(lost)}." if lost else "."
    caption = f"Kernel time by {owner}: launched there, and with what lies inside"
    named = summary.assign(name=summary["name"].astype("string").fillna(f"no {owner}"))
    return [
        *(
            [charts.icicle.owners(index.tree(window=window, kernels=rows), by=part)]
            if part != "phase"
            else []
        ),
        sentence,
        charts.tables.searchable(named, columns=OWNER_COLUMNS, caption=caption),
    ]


def _owners(source: Selection | Explorer, run: Run, by: str) -> Owners:
    """Return the index of a run; Pending where a person waits for a large one."""
    tables = {"ranges": run.ranges, "ops": run.ops, "python_calls": run.python_calls}
    made: live.Later[Owners] = live.Later(
        lambda: Owners(run.kernels, run.api_calls, by=by, together=True, **tables)
    )
    later = _OWNERS.setdefault(run, {}).setdefault(by, made)
    is_small = len(run.kernels) + max(map(len, tables.values())) <= live.MANY
    return live.index_of(later, run, "owners", at_once=is_small or isinstance(source, Selection))


@follows
def ranks(view: Selection) -> list[Part]:
    """Show where the time of each rank goes, who comes last to collectives, and their bandwidth."""
    if len(set(view.run.capture["rank"])) < 2 and view.run.collectives.empty:
        is_heard = view.all_kernels["family"].eq("communication").any()
        return [SIZELESS if is_heard else ALONE]
    traced = view.framework
    seen = (traced.kernels, traced.copies)
    parts = analysis.timeline.breakdown(*seen, window=traced.measured, others=traced.other_kernels)
    every = view.run.all_ranks  # where all are too many to open
    held = traced.collectives if every is None else every.collectives
    if traced.window is not None:  # collectives that began in it; a benchmark's have no time of day
        held = held[
            held["start_ns"].between(*traced.window, inclusive="left").fillna(False).astype(bool)
        ]
    rates = analysis.communication.summary(held)
    some(parts if len(parts) else rates, view, "KERNELS", "kernels")
    steps = diagnosis.timeline.detected(view)
    if every is not None:  # their figures, without their events
        parts, steps = every.reduced.by_device().assign(other_kernels_ns=0), every.reduced.by_step()
    made: list[Part] = [charts.ranks.parts(parts)] if len(parts) else []
    if len(set(steps["rank"])) > 2 and len(set(steps["step"])) > 1:
        made.append(charts.ranks.step_times(steps))
    if len(worth := analysis.ranks.worth_opening(parts)):
        caption = "Ranks that differ most from the others: open these first"
        made.append(charts.tables.show(worth.drop(columns="figure"), caption=caption))
    per_node = analysis.clocks.per_node(traced.run.devices)
    if len(nodes := analysis.ranks.by_node(parts, gpus_per_node=per_node)):
        caption = f"Nodes of {per_node} GPUs, ranks counted node by node: shares of their time"
        made.append(charts.tables.searchable(nodes, caption=caption))
    if len(rates) or cut(traced.all_kernels, traced.window)["family"].eq("communication").any():
        made += _waits(traced, per_node, every)
    if len(rates):
        caption = "Collectives: algorithm and bus bandwidth as in nccl-tests"
        is_measured = (rates["bus_bytes_per_s"].notna() & rates["bytes"].gt(0)).any()
        if is_measured:
            made.append(charts.ranks.bandwidth(rates))
        made += [charts.tables.searchable(rates, caption=caption)]
    return made


def _waits(view: Selection, per_node: int, every: Run | None) -> list[Part]:
    """Show who comes last to collectives, what these lose by process group, and how far apart the clocks are."""
    if not view.run.is_on_one_clock:
        return [
            f"perfkit cannot tell which rank waits: {'; '.join(perfkit_run.distant(view.run.profiles))}."
        ]
    if every is None:
        told = analysis.clocks.of_ranks(view.collectives, view.all_kernels)
    else:  # collectives of all ranks; their kernels are not open, and could not stand for collectives without sizes
        told = analysis.clocks.of_ranks(every.collectives, view.all_kernels.iloc[:0])
    found = analysis.clocks.offsets(told)
    held = analysis.clocks.aligned(told, found)
    if view.window is not None:
        is_inside = held["start_ns"].between(*view.window, inclusive="left").astype(bool)
        told, held = told[is_inside], held[is_inside]
    try:
        late = analysis.communication.stragglers(held)
    except PerfkitError as e:  # the clocks of the ranks do not agree
        return [f"perfkit cannot tell which rank waits: {e}", *charts.ranks.clocks(found)]
    lost = []
    if every is None:
        lost = charts.ranks.losses(
            analysis.clocks.losses(told, view.all_kernels, found, gpus_per_node=per_node)
        )
    if not late["count"].any():
        return [UNMATCHED, *lost, *charts.ranks.clocks(found)]
    return [
        charts.ranks.waits(late),
        charts.ranks.lateness(analysis.communication.matched(held)),
        *lost,
        *charts.ranks.clocks(found),
    ]


@follows
def call_paths(view: Selection) -> list[Part]:
    """Show the hot path, the tree of GPU time and that of CPU time, and functions by their own time.

    Of the GPU's time, or of the CPU's where no GPU was recorded, as sums over the whole run: choices do not apply.
    """
    if view.run not in _MADE:  # made once per run, since no choice changes it
        _MADE[view.run] = _call_paths(view)
    return _MADE[view.run]


def _call_paths(view: Selection) -> list[Part]:
    tree, metrics = some(view.run.calltree, view, "CALLTREE", "call paths"), view.run.call_metrics
    followed, host = diagnosis.path_metric(view), analysis.calltree.host_metric(metrics)
    if not followed:
        return [
            "Neither GPU operations nor CPU time were recorded: hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM."
        ]
    path = analysis.calltree.paths.hot_path(tree, metrics, metric=followed)
    named = path[~path["kind"].eq("line") | path["line"].gt(0)]
    functions = analysis.calltree.totals.exclusive(tree, metrics, metric=followed)
    caption = "Functions by their own time, without what they call"
    drawn = [metric for metric in dict.fromkeys((followed, host)) if metric]
    return [
        charts.tables.show(named, columns=PATH_COLUMNS, rows=60, caption="The hot path"),
        *(charts.icicle.tree(tree, metrics, metric=metric) for metric in drawn),
        *([NO_GPU] if followed == host else []),
        *([] if host else [NO_HOST]),
        charts.tables.searchable(functions, columns=FUNCTION_COLUMNS, caption=caption),
    ]


def timeline(source: Selection | Explorer) -> Shown | Live | ipywidgets.DOMWidget:
    """Show what ran when: streams as lanes, steps above; in an explorer with levels of detail."""
    if isinstance(source, Selection):
        return shown(source, _timeline)
    from perfkit.widgets.timeline import Zoomable

    return Zoomable(source)


@follows
def kernels(view: Selection, *, top: int = 15) -> list[Part]:
    """Show which kernels take the time: at most `top` (1 or more) as bars, how long the first lasts, and a table."""
    summary = some(
        analysis.kernels.summary(view.kernels, window=view.window), view, "KERNELS", "kernels"
    )
    columns = KERNEL_COLUMNS
    if _is_of_several(view.kernels):
        summary = summary.assign(gpus=summary["name"].map(_gpus_of(view.kernels)))
        columns = [*KERNEL_COLUMNS[:2], "gpus", *KERNEL_COLUMNS[2:]]
    table = charts.tables.searchable(summary, columns=columns, caption="Kernels by total time")
    lengths = charts.kernels.durations(cut(view.kernels, view.window))
    return [charts.kernels.bars(summary, top=top), lengths, table]


def _is_of_several(operations: pd.DataFrame) -> bool:
    """Say whether operations ran on several GPUs."""
    places = operations[[*PLACE]]
    return bool(len(places) and places.ne(places.iloc[0]).to_numpy().any())


def _gpus_of(kernels: pd.DataFrame) -> pd.Series:
    """Return by name on which GPUs kernels ran."""
    places = kernels[["name", *PLACE]].drop_duplicates()
    labels = charts.theme.devices(places).str.replace("GPU ", "")
    of_names = labels.groupby(places["name"].astype(str))
    return of_names.agg(lambda names: several(names, MOST_GPUS))


def gaps(source: Selection | Explorer) -> Shown | Live:
    """Show how long the GPU was idle by cause, in gaps of what length, and the longest gaps.

    Which kernels are chosen does not matter: the others keep the GPU busy all the same.
    """
    return shown(source, lambda view: _gaps(view, *live.gaps(source, view)))


@follows
def transfers(view: Selection) -> list[Part]:
    """Show copies by direction and memory, the small ones, and copies that wait because their memory is pageable."""
    is_of_several = _is_of_several(view.copies)
    by = (*PLACE, *COPY_KEYS) if is_of_several else COPY_KEYS
    copied = analysis.memory.copied(view.copies, by=by, window=view.window)
    every = some(copied, view, "COPIES", "copies")
    columns = [*PLACE, *COPY_COLUMNS] if is_of_several else COPY_COLUMNS
    small = analysis.memory.small_copies(view.copies, window=view.window)
    small, none = small[small["count"] > 0], "No copy is of 64 KiB or less."
    pageable = analysis.memory.pageable_async(cut(view.copies, view.window), view.api_calls)
    waiting = "Asynchronous copies that wait because their memory is pageable"
    unpaged = "No asynchronous copy has to wait because its memory is pageable."
    shown: list[Part] = [
        charts.tables.show(every, columns=columns, caption="Copies by direction and memory"),
        charts.tables.show(small, caption="Copies of at most 64 KiB") if len(small) else none,
        charts.tables.searchable(pageable, caption=waiting) if len(pageable) else unpaged,
    ]
    taken = analysis.memory.taken(view.memory_events, window=view.window)
    if len(taken):
        shown.append(charts.tables.show(taken, caption="Memory that the program took from CUDA"))
    return shown


def _timeline(view: Selection) -> list[Part]:
    bins = analysis.timeline.bins(view.kernels, view.copies, bins=STILL_BINS, window=view.window)
    some(bins, view, "KERNELS", "kernels and copies", recorded=_used(view))
    return [charts.timeline.lanes(bins, steps=view.steps)]


def _gaps(view: Selection, gaps: pd.DataFrame, cause: Determinable) -> list[Part]:
    if not len(gaps) and _used(view):
        return [f"No GPU was idle in what is chosen ({view.description})."]
    some(gaps, view, "KERNELS", "operations of a GPU")
    why = diagnosis.unrecorded(view)
    if why:
        return [f"perfkit cannot tell when the GPU was idle: {why}."]
    by_cause = analysis.gaps.idle_by_cause(gaps)
    causes = (
        charts.timeline.causes(by_cause)
        if cause.yes
        else f"perfkit cannot tell why the GPU was idle: {cause.why}."
    )
    longest = analysis.gaps.longest(gaps, charts.tables.MOST)
    of_cause, of_detail = longest["cause"].astype("string"), longest["detail"].astype("string")
    longest = longest.assign(cause=of_detail.map(DETAIL_NAMES).fillna(of_cause.map(CAUSE_NAMES)))
    caption = (
        "Idle gaps, the longest first, who kept the GPU idle, and the range and call they fall in"
    )
    columns = GAP_COLUMNS
    if len(view.run.kernels) <= live.MANY:
        of_gaps = in_words(owners_of(view, gaps))
        longest = longest.assign(owner=of_gaps.reindex(longest.index).to_numpy())
    else:  # the answer would take longer than a person waits
        columns = [name for name in GAP_COLUMNS if name != "owner"]
    table = charts.tables.searchable(longest, columns=columns, caption=caption, total=len(gaps))
    return [causes, charts.timeline.histogram(analysis.gaps.histogram(gaps)), table]


def _used(view: Selection) -> bool:
    """Say whether anything ran on a GPU in the run, chosen or not."""
    return not (view.run.kernels.empty and view.run.copies.empty)


@follows
def machine(view: Selection, *, peaks: str = "") -> list[Part]:
    """Show the ceilings of the GPU, and what they leave of typical operations.

    Ceilings are of one kind of GPU: where a run has several, choose. `peaks` is a CSV file of `perfkit baseline`, or of
    one's own; empty for the data sheet alone.
    """
    gpu = diagnosis_machine.machine(view, peaks=peaks)
    parts: list[Part] = [
        f"{gpu.why[:1].upper()}{gpu.why[1:]}." if gpu.why else f"The GPU is {gpu.name}."
    ]
    if len(gpu.ceilings):
        parts.append(charts.tables.show(gpu.table, caption=CEILINGS))
    if gpu.operations is not None:
        parts.append(charts.machine.roofline(gpu.operations, gpu.ceilings, roof=gpu.precision))
    return parts


@follows
def collectives(view: Selection, *, peaks: str = "") -> list[Part]:
    """Show how fast the GPUs communicate: bus bandwidth by message size, its plateau, the line rate, and the paths.

    `peaks` as in `machine`. A benchmark is of all its GPUs: ranks choose its log, a window does not apply.
    """
    rates = analysis.communication.summary(view.collectives)
    every = view.run.links
    linked = every[every["rank"].isin(view.ranks)] if view.ranks else every
    links = linked.value_counts(["kind", "transport"], dropna=False).reset_index()
    is_recorded = not (view.run.collectives.empty and every.empty)
    some(rates if len(rates) else links, view, "BENCHMARK", "collectives", recorded=is_recorded)
    made: list[Part] = []
    if len(rates):
        limit = diagnosis_machine.line_rate(view, peaks=peaks)
        plateau = analysis.communication.plateau(view.collectives)
        caption = "Bus bandwidth of the largest messages"
        made += [
            charts.ranks.bandwidth(rates, line_rate_bytes_per_s=limit.bytes_per_s),
            f"Line rate: {limit.why}.",
        ]
        made += [charts.tables.show(plateau, columns=PLATEAU, rows=24, caption=caption)]
    if len(links):
        caption = "Rings, trees and connections of NCCL, by transport"
        made += [
            charts.ranks.connections(linked),
            charts.tables.show(links, rows=20, caption=caption),
        ]
    return made


@follows
def training(view: Selection, *, peaks: str = "") -> list[Part]:
    """Show how fast a training runs: its iterations, their medians, the share of the peak, and how it scales.

    `peaks` as in `machine`. Ranks choose among logs, a window among the iterations of a log.
    """
    iterations = diagnosis_machine.iterations(view)
    medians = diagnosis_machine.trainings(view)
    is_missed = len(iterations) and not iterations["chosen"].any()
    is_recorded = bool(view.run.samples["metric"].isin(list(diagnosis_machine.TRAINING)).any())
    some(
        medians.iloc[:0] if is_missed else medians,
        view,
        "TRAINING",
        "iterations",
        recorded=is_recorded,
    )
    drawn = [charts.machine.iterations(iterations)] if iterations["rank"].duplicated().any() else []
    rows, work = diagnosis_machine.scaling(view)
    scaling = (
        charts.machine.scaling_efficiency(rows, work=work)
        if len(set(rows["gpus"])) > 1
        else ONE_SIZE
    )
    caption = "Each log of a training: medians over its iterations"
    shown = [*drawn, charts.tables.show(medians, caption=caption), _share(view, peaks), scaling]
    listed = view.run.table("MODULES")
    if len(layers := analysis.efficiency.modules(listed[listed["rank"].isin(medians["rank"])])):
        caption = (
            "Modules by class: own time in the forward pass, "
            "with the time of modules that the report does not list"
        )
        shown.append(charts.tables.searchable(layers, caption=caption))
    return shown


def _share(view: Selection, peaks: str) -> Part:
    share, name = (
        diagnosis_machine.share(view, peaks=peaks),
        diagnosis_machine.machine(view, peaks=peaks).name,
    )
    if share.table is None:
        return f"perfkit cannot tell which share of the peak it uses: {share.why}."
    whole = share.table[
        "iteration_mfu_frac"
    ]  # as the figure has it: with the optimizer, where the log prints that
    table = share.table.assign(mfu_frac=whole.fillna(share.table["mfu_frac"]))
    caption = f"Share of the dense peak of {name}: forward pass, and MFU of the whole iteration where the log prints it"
    return charts.tables.show(table, columns=SHARE, caption=caption)


@follows
def roofline(view: Selection, *, peaks: str = "") -> list[Part]:
    """Show where the measured launches lie under the roofs of their GPU, and what bounds them.

    A window does not apply: counters are measured in runs of their own. `peaks` is a CSV file of peaks, see
    `perfkit.hardware.load_peaks`; empty for the GPU's data sheet or the report itself.
    """
    some(view.launches, view, "LAUNCHES", "launches with counters")
    roof = diagnosis.roof(view, peaks=peaks)
    picture = (
        charts.roofline.roofline(roof.points, roof.ceilings)
        if roof.ceilings is not None
        else roof.source
    )
    source = f"; roofs: {roof.source}" if roof.ceilings is not None else ""
    return [
        picture,
        charts.tables.searchable(
            roof.points, columns=PLACES, caption=f"Place of each launch{source}"
        ),
        charts.tables.searchable(
            roof.points, columns=VERDICTS, caption="What bounds each launch, and why"
        ),
    ]
