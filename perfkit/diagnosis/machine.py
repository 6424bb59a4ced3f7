"""The machine of a run: what its GPU can do, and what its links carry.

Peaks are those of the data sheet of the GPU that the run names, with what `perfkit baseline` measured beside them;
there is no default GPU. Operations are held against measured roofs where both of them are, else the data sheet's.

A training is a log of DeepSpeed or Megatron; its figures are medians over its iterations, since the first ones compile
and fill caches; a window chooses those whose line was written in it. Its share of the peak (MFU) is held against the
16-bit tensor peak, in which such trainings compute most.

Thresholds of dense trainings in 16 bits on A100 and H100: an MFU below 0.2 is poor, below 0.35 low, 0.45 to 0.55 good,
above 0.7 beyond what was ever published, above 1 impossible and refused (PaLM, Megatron-LM, Llama 3; the guide's
symptom of bottleneck 1 is below 0.4).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from perfkit import hardware
from perfkit.analysis import communication, efficiency, llm_operations
from perfkit.analysis import scaling as analysis_scaling
from perfkit.diagnosis import interconnect
from perfkit.diagnosis.finding import Figure, Refusal
from perfkit.diagnosis.interconnect import LineRate, transports
from perfkit.diagnosis.rules.machine import MFU, OPTIMIZER
from perfkit.diagnosis.words import words
from perfkit.errors import PerfkitError
from perfkit.format import MISSING, number, percent, size
from perfkit.hardware import Peaks
from perfkit.selection import Selection
from perfkit.tables import SAMPLES

# What says how fast a network is, where it is not InfiniBand.
NETWORKS = {"NET/AWS Libfabric": "fi_info -p efa", "NET/Socket": "ethtool INTERFACE"}
PRECISIONS = (
    "bf16_tensor",
    "fp16_tensor",
    "fp32",
)  # what language models are trained in, the first that is known
ELEMENT = {"fp32": 4}  # bytes; the others have 2


@dataclass(frozen=True)
class Machine:
    """The GPU of a run, empty name if it is not known: its roofs, its dense peaks, and typical operations under them.

    `operations` is None where no roof is known, `why` says why nothing, or not all, is known. `precision` is the one
    that operations and trainings are held against, empty where its peak is not known.
    """

    name: str
    ceilings: pd.DataFrame
    peaks: Peaks | None
    operations: pd.DataFrame | None
    precision: str
    why: str

    @property
    def table(self) -> pd.DataFrame:
        """The roofs as text: roof, data sheet, measured, measured over data sheet, ridge in FLOP/byte."""
        rows = [
            (
                "memory" if row["roof"] == llm_operations.MEMORY else spoken(str(row["roof"])),
                _rate(row["flops_per_s"], row["bytes_per_s"]),
                _rate(row["measured_flops_per_s"], row["measured_bytes_per_s"]),
                percent(row["measured_frac"]),
                number(row["ridge"]),
            )
            for row in self.ceilings.to_dict("records")
        ]
        return pd.DataFrame(
            rows, columns=["roof", "data sheet", "measured", "measured over data sheet", "ridge"]
        )


PLACES = 400  # of iterations in a picture
KINDS = frozenset({"network", "training"})
TRAINING = words("training")
_NAMES = ("step_ns", "tokens_per_s", "samples_per_s", "flops_per_s")  # of the same, as columns
PHASES = {"forward_ns": "forward pass", "backward_ns": "backward pass", "step_ns": "optimizer step"}
_TIMES = ("forward_ns", "backward_ns", "forward_flops_per_s", "world_size_count", "step_ns")
MEASURE = "perfkit baseline gemm, then perfkit report RUN --peaks baseline.csv"
MEMORY = words("memory")


@dataclass(frozen=True)
class Share:
    """The share of the peak of each training; None if it is refused, and why."""

    table: pd.DataFrame | None
    why: str


def spoken(precision: str) -> str:
    """Return a precision as people write it: "BF16 tensor" for `bf16_tensor`."""
    kind, _, unit = precision.partition("_")
    return f"{kind.upper()} {unit}".strip()


def _rate(flops_per_s: float, bytes_per_s: float) -> str:
    if pd.notna(bytes_per_s):
        return f"{size(bytes_per_s)}/s"
    return MISSING if pd.isna(flops_per_s) else f"{number(flops_per_s / 1e12)} TFLOP/s"


def machine(view: Selection, *, peaks: str = "") -> Machine:
    """Return the GPU of a run with its roofs; a log that names none is held against the only GPU in `peaks`."""
    names = sorted({str(name) for name in view.devices["name"]})
    own = hardware.load_peaks(peaks) if peaks else ()
    name = names[0] if len(names) == 1 else own[0].name if not names and len(own) == 1 else ""
    sheet, measured = hardware.peaks(name), hardware.peaks(name, table=own)
    why = _unknown(names, name, sheet, measured, own)
    try:
        ceilings = llm_operations.ceilings(peaks=sheet, measured=measured)
    except PerfkitError as e:
        ceilings, measured, why = llm_operations.ceilings(peaks=sheet), None, str(e)
    rates = next(
        (r for r in (measured, sheet) if r and r.memory_bytes_per_s and _precision(r)), None
    )
    precision, placed = _precision(rates or sheet or measured), None
    if rates:
        work = llm_operations.work(element_bytes=ELEMENT.get(precision, 2))
        placed = llm_operations.attainable(work, peaks=rates, precision=precision)
    return Machine(name, ceilings, sheet or measured, placed, precision, why)


def _precision(rates: Peaks | None) -> str:
    return next((name for name in PRECISIONS if rates and name in rates.flops_per_s), "")


def _unknown(
    names: list[str], name: str, sheet: Peaks | None, measured: Peaks | None, own: tuple[Peaks, ...]
) -> str:
    """Return why the peaks of the GPU, or what was measured on it, are not known; empty if they are."""
    if len(names) > 1:
        return f"the run has GPUs of several kinds ({', '.join(names)}), with different peaks: choose one with `gpus`"
    if not name:
        return "the run does not name its GPU, and you gave no file with its peaks"
    if measured is None and own:
        return f"the file of peaks lacks {name}; it has {', '.join(row.name for row in own[:5])}"
    if sheet is None and measured is None:
        why = hardware.why_unknown(name)
        return f"perfkit knows no peaks of {name}, neither from a data sheet nor from a measurement: {why}"
    return ""


def line_rate(view: Selection, *, peaks: str = "") -> LineRate:
    """Return the line rate that collectives can be held against: NVLink's, where all ranks are on one node of it.

    It is half of the data sheet's NVLink bandwidth, which is of both directions, where each rank has a GPU of the first
    node to itself and the GPUs are modules that a switch or a full mesh joins, or two cards that a bridge joins. The
    speed of a network is in no log.
    """
    crossing = communication.plateau(view.collectives)
    ranks, gpus = crossing["ranks"].max(), len(view.devices[["rank", "gpu"]].drop_duplicates())
    if crossing.empty:
        return LineRate(None, "the log has no bus bandwidth")
    if ranks > gpus:
        return LineRate(
            None,
            f"{ranks} ranks on nodes of {gpus} GPU{'s' * (gpus > 1)} communicate over a network of unknown speed",
        )
    transports = view.run.links["transport"].dropna().astype("string").unique()
    slow = [transport for transport in transports if not transport.startswith("P2P")]
    if slow:
        return LineRate(None, f"NVLink does not connect all ranks: {', '.join(slow[:3])}")
    found = machine(view, peaks=peaks)
    # A bridge joins two cards; that these two have one is in a log of NCCL only.
    joined = ranks == 2 and view.run.links["path"].eq("NVL").any()
    both = (
        found.peaks.nvlink_bytes_per_s
        if found.peaks and (joined or "sxm" in found.peaks.key)
        else None
    )
    if both is None:
        return LineRate(
            None,
            f"the data sheet of {found.name or 'the GPU'} gives no speed of links between all GPUs",
        )
    return LineRate(both / 2, f"NVLink of {found.name}, one direction, from its data sheet")


def trainings(view: Selection) -> pd.DataFrame:
    """Return what each log of a training says, a row per rank: medians over its iterations.

    Columns by rank: `rank` int32; `gpus` Int64, GPUs that train together, NA where not told; `step_ns`, `tokens_per_s`,
    `samples_per_s` of all GPUs, `flops_per_s` of one GPU, float64, NaN where the log does not say it;
    `iterations_count` int64, iterations with a time.
    """
    samples, medians = _medians(view)
    counted = (
        samples["rank"][samples["metric"] == "iteration_ns"]
        .value_counts()
        .reindex(medians.index, fill_value=0)
    )
    table = pd.DataFrame(
        {"rank": medians.index, "gpus": medians["world_size_count"].astype("Int64").array}
    )
    columns = {
        name: medians[metric].to_numpy() for metric, name in zip(TRAINING, _NAMES, strict=True)
    }
    return table.assign(**columns, iterations_count=counted.to_numpy("int64")).astype(
        {"rank": "int32"}
    )


def _medians(view: Selection) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the chosen readings of the logs, and the median of each metric by rank; NaN where a log has none."""
    samples = _readings(view)
    samples = samples[_is_chosen(samples, view)]
    medians = samples.pivot_table(index="rank", columns="metric", values="value", aggfunc="median")
    return samples, medians.reindex(columns=[*TRAINING, *_TIMES]).astype("float64")


def _readings(view: Selection) -> pd.DataFrame:
    metrics = view.samples["metric"]
    return view.samples[metrics.isin([*TRAINING, *_TIMES])].astype({"metric": "string"})


def _is_chosen(readings: pd.DataFrame, view: Selection) -> pd.Series:
    """Say which lines of a log were written in the window (its end, the last line, too), and what it says but once."""
    inside = readings["time_ns"].between(*(view.window or (-math.inf, math.inf)))
    return inside | ~readings.duplicated(["rank", "metric"], keep=False)


def iterations(view: Selection) -> pd.DataFrame:
    """Return the iterations of each log of a training, in the window or not; neighbours together in a long log.

    Columns by rank and time: `rank` int32; `time_ns` int64, when the line was written, since the start; `count` int64,
    iterations, 1 in a log of at most 400; `median_ns`, `least_ns` and `most_ns` float64, of their times; `chosen` bool,
    whether one of them is in the window, or the only one.
    """
    readings = _readings(view)
    readings = readings[readings["metric"] == "iteration_ns"].sort_values(
        ["rank", "time_ns"], kind="stable"
    )
    of_log = readings.groupby("rank")["value"]
    place = of_log.cumcount() * PLACES // of_log.transform("size").clip(lower=PLACES)
    groups = readings.assign(place=place, chosen=_is_chosen(readings, view)).groupby(
        ["rank", "place"]
    )
    value = groups["value"]
    table = groups.agg(
        time_ns=("time_ns", "first"), count=("value", "size"), chosen=("chosen", "any")
    )
    table = table.assign(
        median_ns=value.median(), least_ns=value.min(), most_ns=value.max()
    ).reset_index()
    return table[["rank", "time_ns", "count", "median_ns", "least_ns", "most_ns", "chosen"]]


def phases(view: Selection) -> pd.DataFrame:
    """Return how long the phases of an iteration take in each log that prints them (DeepSpeed).

    Columns by rank: `rank` int32; `phase` str, forward pass, backward pass, optimizer step, or rest of the iteration;
    `median_ns` float64, at least 0. No rows where no log prints a pass and the iteration.
    """
    medians = _medians(view)[1][[*PHASES, "iteration_ns"]].dropna(
        subset=["forward_ns", "iteration_ns"]
    )
    medians = medians.rename(columns=PHASES).fillna(0.0)
    medians["rest of the iteration"] = (medians.pop("iteration_ns") - medians.sum(axis=1)).clip(
        lower=0.0
    )
    long = medians.melt(var_name="phase", value_name="median_ns", ignore_index=False).reset_index()
    return long.sort_values("rank", kind="stable", ignore_index=True).astype({"rank": "int32"})


def share(view: Selection, *, peaks: str = "") -> Share:
    """Return the share of the dense 16-bit tensor peak that each log of a training comes to, or why it is refused.

    The table is `analysis.efficiency.reported_mfu` of the medians over the iterations. A share above 1 is refused.
    """
    medians = _medians(view)[0].groupby(["rank", "gpu", "metric"], as_index=False)["value"].median()
    found = machine(view, peaks=peaks)
    if found.peaks is None or not found.precision:
        return Share(None, found.why or f"perfkit knows no 16-bit tensor peak of {found.name}")
    try:
        samples = SAMPLES.make(medians.assign(time_ns=0))
        table = efficiency.reported_mfu(samples, peaks=found.peaks, precision=found.precision)
    except PerfkitError as e:
        return Share(None, str(e))
    return (
        Share(table, "")
        if len(table)
        else Share(None, "no training log prints a rate of operations")
    )


def scaling(view: Selection) -> tuple[pd.DataFrame, str]:
    """Return the scaling efficiency over the logs of a training on several numbers of GPUs, and what they count.

    The table is `analysis.scaling.scaling` of tokens per second, or of samples where not all logs say tokens.
    """
    logs = trainings(view).dropna(subset=["gpus"])
    work = "tokens" if logs["tokens_per_s"].notna().all() else "samples"
    runs = logs.rename(columns={f"{work}_per_s": "throughput_per_s"})[
        ["gpus", "throughput_per_s"]
    ].dropna()
    return analysis_scaling.scaling(analysis_scaling.RUNS.make(runs)), work


def figures(view: Selection, *, peaks: str = "") -> Iterator[Figure]:
    """Yield the figures of step 1; what the run does not hold is absent."""
    if not is_baseline(view):
        return
    yield from _ceilings(machine(view, peaks=peaks))
    yield from interconnect.figures(view, line_rate(view, peaks=peaks))
    yield from _trainings(view)
    yield from _iteration_rates(view)
    yield from _optimizers(view)
    yield from _shares(view, peaks)
    for metric, definition in MEMORY.items():
        values = view.samples["value"][view.samples["metric"].eq(metric)]
        if len(values):
            yield Figure(
                "baseline_memory_bytes",
                "Memory used",
                float(values.max()),
                "bytes",
                definition,
                "SAMPLES",
            )
            break


def is_baseline(view: Selection) -> bool:
    """Say whether the run holds a benchmark of communication or a log of a training."""
    return bool(KINDS & view.run.kinds)


def _ceilings(found: Machine) -> Iterator[Figure]:
    """Yield the roofs that matter: the peak of the precision, the memory, and the ridge between them."""
    precision = f"{spoken(found.precision)} peak"
    for roof, part, label, column in (
        (found.precision, "peak", precision, "flops_per_s"),
        ("dram", "memory", "memory bandwidth", "bytes_per_s"),
    ):
        unit = "FLOP/s" if part == "peak" else "bytes/s"
        for row in found.ceilings[found.ceilings["roof"].eq(roof)].to_dict("records"):
            values = [
                (column, f"{part}_{column}", "", unit, "data sheet, dense"),
                (
                    f"measured_{column}",
                    f"measured_{part}_{column}",
                    ", measured",
                    unit,
                    "from the file of peaks",
                ),
                (
                    "measured_frac",
                    f"{part}_frac",
                    ", share reached",
                    "1",
                    "measured share of the data sheet's",
                ),
                ("ridge", "ridge", " over bandwidth: ridge", "FLOP/byte", "data sheet"),
            ]
            for name, own, more, of, definition in values:
                if row[name] > 0:
                    said, what = (
                        f"{label[:1].upper()}{label[1:]}{more}",
                        f"{label} of {found.name}, {definition}",
                    )
                    yield Figure(
                        f"baseline_{own}",
                        said,
                        float(row[name]),
                        of,
                        what,
                        "llm_operations.ceilings",
                    )


def _trainings(view: Selection) -> Iterator[Figure]:
    logs = trainings(view)
    passes = _medians(view)[1]["forward_ns"].notna()
    for row in logs.to_dict("records"):
        suffix, of, _ = _apart(row["rank"], len(logs))
        for column, (name, label, unit, definition) in zip(_NAMES, TRAINING.values(), strict=True):
            if column == "flops_per_s" and passes[row["rank"]]:
                label, definition = words("rate_of_passes")
            if row[column] > 0:
                yield Figure(
                    name + suffix, label + of, float(row[column]), unit, definition, "SAMPLES"
                )
        if pd.notna(row["gpus"]):
            if row["tokens_per_s"] > 0:
                rate = float(row["tokens_per_s"] / row["gpus"])
                label, definition = words("tokens_of_a_gpu")
                name = f"baseline_tokens_per_gpu_per_s{suffix}"
                yield Figure(name, label + of, rate, "1/s", definition, "SAMPLES")
            definition = "number of GPUs that train together, from the log"
            yield Figure(
                f"baseline_gpu_count{suffix}",
                f"GPUs{of}",
                int(row["gpus"]),
                "count",
                definition,
                "SAMPLES",
            )


def _iteration_rates(view: Selection) -> Iterator[Figure]:
    """Yield the rate of operations over the whole iteration, where a log of DeepSpeed prints that of both passes."""
    medians = _medians(view)[1]
    times = medians[["forward_ns", "backward_ns", "iteration_ns", "training_flops_per_s"]].dropna()
    for rank, forward, backward, whole, rate in times.query("iteration_ns > 0").itertuples(
        name=None
    ):
        suffix, of, _ = _apart(rank, len(medians))
        value = float(rate * (forward + backward) / whole)
        label, definition = words("rate_of_iteration")
        yield Figure(
            f"baseline_iteration_flops_per_s{suffix}",
            label + of,
            value,
            "FLOP/s",
            definition,
            "SAMPLES",
        )


def _optimizers(view: Selection) -> Iterator[Figure]:
    """Yield how long the optimizer's step takes, where a log of DeepSpeed prints it beside the iteration."""
    medians = _medians(view)[1]
    timed = medians[["step_ns", "iteration_ns"]].dropna().query("iteration_ns > 0")
    for rank, step, whole in timed.itertuples(name=None):
        suffix, of, named = _apart(rank, len(medians))
        share, definition = (
            min(step / whole, 1.0),
            "median time of the optimizer's step, after both passes",
        )
        yield Figure(
            f"baseline_optimizer_ns{suffix}",
            f"Optimizer step{of}",
            float(step),
            "ns",
            definition,
            "SAMPLES",
        )
        definition = "share of the iteration's time that the optimizer's step takes"
        yield Figure(
            f"baseline_optimizer_frac{suffix}",
            f"Optimizer in the iteration{of}",
            share,
            "1",
            definition,
            "SAMPLES",
            kind=OPTIMIZER,
            log=named,
            amount=f"baseline_optimizer_ns{suffix}",
        )


def _apart(rank: int, logs: int) -> tuple[str, str, str]:
    """Return what tells the figures of several logs apart: the end of an id and of a label, and in a title."""
    return (f"_{rank}", f", log {rank}", f" of log {rank}") if logs > 1 else ("", "", "")


def _shares(view: Selection, peaks: str) -> Iterator[Figure]:
    found, name = share(view, peaks=peaks), machine(view, peaks=peaks)
    if found.table is None:
        return
    for row in found.table.to_dict("records"):
        suffix, of, named = _apart(row["rank"], len(found.table))
        whole = row["iteration_mfu_frac"]  # DeepSpeed prints the rate of the two passes alone
        value = float(row["mfu_frac"] if pd.isna(whole) else whole)
        rate = (
            "the printed rate"
            if pd.isna(whole)
            else "the rate of the whole iteration, with the optimizer's step,"
        )
        definition = f"{rate} as a share of the dense {spoken(name.precision)} peak of {name.name}"
        if value > 0:
            yield Figure(
                f"baseline_mfu_frac{suffix}",
                f"MFU{of}",
                value,
                "1",
                definition,
                "efficiency.reported_mfu",
                doubt=str(row["note"]),
                kind=MFU,
                log=named,
            )


def refusals(view: Selection, *, peaks: str = "") -> Iterator[Refusal]:
    """Yield the questions of step 1 that the run cannot answer, each with what to record."""
    if not is_baseline(view):
        return
    if view.samples["metric"].isin(list(TRAINING)).any():
        if not view.samples["metric"].isin(list(MEMORY)).any():
            log = "nvidia-smi --query-gpu=timestamp,index,name,memory.used,memory.total --format=csv -l 1 > gpus.csv"
            yield Refusal(
                "How much memory does the training use?", "the log has no reading of it", log
            )
        refused = share(view, peaks=peaks)
        if refused.table is None:
            yield Refusal(
                "What share of the peak does the training use (MFU)?", refused.why, MEASURE
            )
    if view.collectives["source"].eq("benchmark").any():
        limit = line_rate(view, peaks=peaks)
        if limit.bytes_per_s is None:
            question = "How close do collectives come to the speed of the links?"
            networks = transports(view).index
            asked = next((NETWORKS[name] for name in networks if name in NETWORKS), "ibstat")
            yield Refusal(question, limit.why, f"nvidia-smi nvlink --status; {asked}")
