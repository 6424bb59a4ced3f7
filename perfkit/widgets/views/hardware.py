"""Views of step 1: what the machine can do, how fast its GPUs communicate, and how fast a training runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit import analysis, charts, diagnosis
from perfkit.diagnosis import machine as diagnosis_machine
from perfkit.diagnosis.machine import line_rate
from perfkit.diagnosis.machine import machine as machine_of
from perfkit.selection import Selection
from perfkit.widgets.live import Live, Part, Shown, shown
from perfkit.widgets.views.system import some

if TYPE_CHECKING:
    from perfkit.widgets.explorer.choice import Explorer

CEILINGS = "Peaks of the GPU by its data sheet, and as measured (--peaks)"
PLATEAU = ["operation", "ranks", "placement", "largest_bytes", "bus_bytes_per_s", "growth_frac"]
SHARE = ["rank", "peak_flops_per_s", "forward_frac", "mfu_frac", "iteration_mfu_frac", "note"]
ONE_SIZE = "How the training scales takes logs of it on several numbers of GPUs, in one folder."
PLACES = ["launch", "name", "precision", "flops", "dram_bytes", "dur_ns", "flops_per_s", "roof_share_frac"]
VERDICTS = ["launch", "name", "bound", "reason"]


def machine(source: Selection | Explorer, *, peaks: str = "") -> Shown | Live:
    """Show the ceilings of the GPU, and what they leave of typical operations.

    Ceilings are of one kind of GPU: where a run has several, choose. `peaks` is a CSV file of `perfkit baseline`, or of
    one's own; empty for the data sheet alone.
    """
    return shown(source, lambda view: _machine(view, peaks))


def collectives(source: Selection | Explorer, *, peaks: str = "") -> Shown | Live:
    """Show how fast the GPUs communicate: bus bandwidth by message size, its plateau, the line rate, and the paths.

    `peaks` as in `machine`. A benchmark is of all its GPUs: ranks choose its log, a window does not apply.
    """
    return shown(source, lambda view: _collectives(view, peaks))


def training(source: Selection | Explorer, *, peaks: str = "") -> Shown | Live:
    """Show how fast a training runs: its iterations, their medians, the share of the peak, and how it scales.

    `peaks` as in `machine`. Ranks choose among logs, a window among the iterations of a log.
    """
    return shown(source, lambda view: _training(view, peaks))


def _machine(view: Selection, peaks: str) -> list[Part]:
    gpu = machine_of(view, peaks=peaks)
    parts: list[Part] = [f"{gpu.why[:1].upper()}{gpu.why[1:]}." if gpu.why else f"The GPU is {gpu.name}."]
    if len(gpu.ceilings):
        parts.append(charts.tables.show(gpu.table, caption=CEILINGS))
    if gpu.operations is not None:
        parts.append(charts.machine.roofline(gpu.operations, gpu.ceilings, roof=gpu.precision))
    return parts


def _collectives(view: Selection, peaks: str) -> list[Part]:
    rates = analysis.communication.summary(view.collectives)
    every = view.run.links
    links = every[every["rank"].isin(view.ranks)] if view.ranks else every
    links = links.value_counts(["kind", "transport"], dropna=False).reset_index()
    is_recorded = not (view.run.collectives.empty and every.empty)
    some(rates if len(rates) else links, view, "BENCHMARK", "collectives", recorded=is_recorded)
    made: list[Part] = []
    if len(rates):
        limit = line_rate(view, peaks=peaks)
        plateau = analysis.communication.plateau(view.collectives)
        caption = "Bus bandwidth of the largest messages"
        made += [
            charts.ranks.bandwidth(rates, line_rate_bytes_per_s=limit.bytes_per_s),
            f"Line rate: {limit.why}.",
            charts.tables.show(plateau, columns=PLATEAU, rows=24, caption=caption),
        ]
    if len(links):
        made.append(charts.tables.show(links, rows=20, caption="Rings, trees and connections of NCCL, by transport"))
    return made


def _training(view: Selection, peaks: str) -> list[Part]:
    iterations = diagnosis_machine.iterations(view)
    medians = diagnosis_machine.trainings(view)
    is_missed = len(iterations) and not iterations["chosen"].any()
    is_recorded = bool(view.run.samples["metric"].isin(list(diagnosis_machine.TRAINING)).any())
    some(medians.iloc[:0] if is_missed else medians, view, "TRAINING", "iterations", recorded=is_recorded)
    drawn = [charts.machine.iterations(iterations)] if iterations["rank"].duplicated().any() else []
    rows, work = diagnosis_machine.scaling(view)
    is_scaled = len(set(rows["gpus"])) > 1
    scaling = charts.machine.scaling_efficiency(rows, work=work) if is_scaled else ONE_SIZE
    caption = "Each log of a training: medians over its iterations"
    return [*drawn, charts.tables.show(medians, caption=caption), _share(view, peaks), scaling]


def _share(view: Selection, peaks: str) -> Part:
    share, name = diagnosis_machine.share(view, peaks=peaks), machine_of(view, peaks=peaks).name
    if share.table is None:
        return f"What share of the peak it uses cannot be told: {share.why}."
    caption = f"Share of the dense peak of {name}: forward pass, training, whole iteration"
    return charts.tables.show(share.table, columns=SHARE, caption=caption)


def roofline(source: Selection | Explorer, *, peaks: str = "") -> Shown | Live:
    """Show where the measured launches lie under the roofs of their GPU, and what bounds them.

    A window does not apply: counters are measured in runs of their own. `peaks` is a CSV file of peaks, see
    `perfkit.hardware.load_peaks`; empty for the GPU's data sheet or the report itself.
    """
    return shown(source, lambda view: _roofline(view, peaks))


def _roofline(view: Selection, peaks: str) -> list[Part]:
    some(view.launches, view, "LAUNCHES", "launches with counters")
    roof = diagnosis.roof(view, peaks=peaks)
    picture = charts.roofline.roofline(roof.points, roof.ceilings) if roof.ceilings is not None else roof.source
    source = f"; roofs: {roof.source}" if roof.ceilings is not None else ""
    return [
        picture,
        charts.tables.searchable(roof.points, columns=PLACES, caption=f"Place of each launch{source}"),
        charts.tables.searchable(roof.points, columns=VERDICTS, caption="What bounds each launch, and why"),
    ]


def monitor(source: Selection | Explorer) -> Shown | Live:
    """Show the metrics of each GPU over time and the verdicts on utilisation, memory, power, throttling and traffic."""
    return shown(source, _monitor)


def _monitor(view: Selection) -> list[Part]:
    # The allocator's memory is not drawn, and may have been recorded at another time: it would stretch the bins.
    drawn = view.samples["metric"].isin([*charts.monitor.DRAWN_METRICS, *charts.monitor.BESIDE])
    bins = analysis.monitoring.alignment.bins(view.samples[drawn], window=view.window)
    is_recorded = bool(view.run.samples["metric"].isin(charts.monitor.DRAWN_METRICS).any())
    some(bins, view, "SAMPLES", "readings of the GPUs", recorded=is_recorded)
    limits = analysis.monitoring.at_limit(view.samples, view.devices, window=view.window)
    checks = analysis.monitoring.checks(view.samples, view.devices, window=view.window)
    several = ["rank"] if len(set(checks["rank"])) > 1 else []
    columns = [*several, "gpu", "check", "verdict", "reason"]
    table = charts.tables.searchable(checks, columns=columns, caption="Verdict per GPU and check")
    return [charts.monitor.dashboard(bins, limits=limits), table]
