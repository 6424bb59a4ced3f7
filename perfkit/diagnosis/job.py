"""What a run comes to with what its user stated (`perfkit.job.Job`): throughput, MFU, training time and cost.

A step is the median steady step of the timeline, or that of a training log; the GPUs are
`world_size`, or else the recorded ones. Sources: PaLM, arXiv 2204.02311, appendix B
(`analysis.efficiency`).
"""

from collections.abc import Iterator, Mapping

from perfkit.analysis import efficiency, scaling
from perfkit.diagnosis.finding import Figure, Refusal
from perfkit.diagnosis.machine import machine
from perfkit.errors import PerfkitError
from perfkit.job import DTYPES, Job
from perfkit.selection import Selection

STEPS = {"step_median_ns": "RANGES, KERNELS", "baseline_step_ns": "SAMPLES"}
MFU = "How much of the hardware's arithmetic peak does the model use (MFU)?"
OPTIONS = "perfkit report RUN --params N --tokens-per-step N --dtype bf16"
TENTH = 0.1


def figures(view: Selection, known: Mapping[str, Figure], *, peaks: str = "") -> Iterator[Figure]:
    """Yield the figures that follow from the job and the figures `known` of the run."""
    job = view.run.job
    gpus = _gpus(view)
    step = next((id for id in STEPS if id in known), "")
    if step:
        yield from _throughput(job, known[step], STEPS[step])
    mfu = _mfu(view, known, peaks)
    if isinstance(mfu, float):
        what = (
            f"6 x parameters x tokens per second, as a share of {gpus} x the dense {job.dtype} peak "
            "of one GPU"
        )
        yield Figure("job_mfu_frac", "MFU", mfu, "1", what, f"{STEPS[step]}; efficiency.mfu")
    if job.price_per_gpu_hour:
        yield from _costs(job, gpus, known)


def refusal(view: Selection, known: Mapping[str, Figure], *, peaks: str = "") -> Refusal | None:
    """Return why the MFU is not known; None where it is."""
    mfu = _mfu(view, known, peaks)
    if isinstance(mfu, float):
        return None
    has_steps = any(id in known for id in STEPS)
    return Refusal(MFU, mfu, OPTIONS, is_of_another_tool=not has_steps)


def _gpus(view: Selection) -> int:
    return view.run.job.world_size or max(len(view.devices[["rank", "gpu"]].drop_duplicates()), 1)


def _throughput(job: Job, step: Figure, tables: str) -> Iterator[Figure]:
    source = f"{tables}; efficiency.samples_per_s"
    for count, id, label in (
        (job.tokens_per_step, "job_tokens_per_s", "Tokens"),
        (job.samples_per_step, "job_samples_per_s", "Samples"),
    ):
        if count:
            rate = efficiency.samples_per_s(global_batch=count, step_ns=step.value)
            yield Figure(
                id, label, rate, "1/s", f"{label.lower()} of a step per median step time", source
            )
    if job.tokens_per_step and job.total_tokens:
        rate = efficiency.samples_per_s(global_batch=job.tokens_per_step, step_ns=step.value)
        value = scaling.training_time(tokens=job.total_tokens, tokens_per_s=rate)
        what = "all tokens of the training divided by tokens per second, without interruptions"
        yield Figure(
            "job_training_ns",
            "Training time",
            value,
            "ns",
            what,
            f"{tables}; scaling.training_time",
        )


def _mfu(view: Selection, known: Mapping[str, Figure], peaks: str) -> float | str:
    job = view.run.job
    step = next((known[id] for id in STEPS if id in known), None)
    needed = {"params": job.parameters, "tokens-per-step": job.tokens_per_step, "dtype": job.dtype}
    lacking = [f"--{name}" for name, value in needed.items() if not value]
    if lacking:
        return f"give {', '.join(lacking)}, or these in perfkit.toml next to the run"
    if step is None:
        return "perfkit found no step in the recording, so it does not know the tokens per second"
    try:
        row = efficiency.mfu(
            tokens_per_s=efficiency.samples_per_s(
                global_batch=job.tokens_per_step, step_ns=step.value
            ),
            flops_per_token=efficiency.flops_per_token(parameters=job.parameters),
            gpus=_gpus(view),
            peaks=machine(view, peaks=peaks).peaks,
            precision=DTYPES[job.dtype],
        )
    except PerfkitError as e:
        return str(e).rstrip(".")
    return float(row["mfu_frac"].iloc[0])


def _costs(job: Job, gpus: int, known: Mapping[str, Figure]) -> Iterator[Figure]:
    rate = job.price_per_gpu_hour * gpus
    priced = (
        f"at {job.price_per_gpu_hour:g} per hour of each of {gpus} GPUs, in the currency of the "
        "price"
    )
    idle, tables = _idle(known)
    if idle is not None:
        what = f"cost of the GPUs' idle time: idle share x price of all GPUs, {priced}"
        yield Figure("job_idle_cost_per_h", "Cost of idle time", rate * idle, "1/h", what, tables)
    yield from _whole(job.hours, rate, idle, priced, tables)
    what = f"10 % of the price of all GPUs, {priced}"
    yield Figure(
        "job_tenth_cost_per_h", "Cost of 10 % of the GPUs' time", TENTH * rate, "1/h", what, tables
    )


def _idle(known: Mapping[str, Figure]) -> tuple[float | None, str]:
    """Return the share of the time in which GPUs are idle, None if not known, and the tables it rests on."""
    if "idle_frac" in known:
        return known["idle_frac"].value, "KERNELS, COPIES"
    if "paths_gpu_busy_frac" in known:
        return 1 - known["paths_gpu_busy_frac"].value, "TRACE"
    return None, "DEVICES"


def _whole(
    hours: float, rate: float, idle: float | None, priced: str, tables: str
) -> Iterator[Figure]:
    """Yield what the whole job costs, and what of it is idle time, where its hours are known."""
    if not hours:
        return
    what = f"price of all GPUs for {hours:g} hours, {priced}"
    yield Figure(
        "job_whole_cost_count", "Cost of the whole job", rate * hours, "count", what, tables
    )
    if idle is not None:
        what = f"idle share x price of all GPUs for {hours:g} hours, {priced}"
        value = rate * hours * idle
        yield Figure(
            "job_whole_idle_cost_count", "Idle time of the whole job", value, "count", what, tables
        )
