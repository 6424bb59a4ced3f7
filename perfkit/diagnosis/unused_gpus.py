"""Which GPUs does a program leave unused?

A GPU that is busy for under a tenth of the time of the busiest one of its rank is unused: only its
own rule tells of it. A GPU that the recording lists and on which nothing ran is never used, if the
ranks do not communicate: else another rank, which was not recorded, may use it.
"""

from collections.abc import Iterator

from perfkit.analysis.grouping import largest
from perfkit.diagnosis import programs
from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.gpus import GPU, HALF, UNUSED
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.collectives import (
    GPU_NEVER_USED,
    GPU_UNUSED,
)
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.timeline import busy, named, unrecorded
from perfkit.format import several
from perfkit.selection import Selection


def findings(view: Selection) -> Iterator[Finding]:
    """Yield which GPUs do nothing while others work, and which ones nobody uses."""
    if not unrecorded(view):
        yield from _unused(view)
        yield from _never_used(view)


def _unused(view: Selection) -> Iterator[Finding]:
    """GPUs that are hardly busy beside another one of their rank. One that another rank keeps busy is not unused."""
    gpus = busy(view)
    gpus = gpus.assign(most_ns=gpus.groupby("rank")["device_busy_ns"].transform("max"))
    is_idle = gpus["device_busy_ns"] < UNUSED * gpus["most_ns"]
    found = gpus[is_idle & ~gpus["gpu"].isin(gpus.loc[~is_idle, "gpu"])]
    if found.empty:
        return
    of = largest(found, "most_ns")
    if of["most_ns"] < HALF * of["span_ns"]:
        return
    names = [named(row, view.all_kernels) for _, row in found[GPU].iterrows()]
    listed = several(names, 8)
    value = 1 - float(found["device_busy_ns"].sum() / found["span_ns"].sum())
    total = int(found["span_ns"].sum() + gpus["span_ns"].max() * (len(gpus) - len(found)))
    share = float((found["span_ns"] - found["device_busy_ns"]).sum() / total)
    figure = Figure(
        "unused_gpu_idle_frac",
        "Unused GPUs idle",
        value,
        "1",
        f"share of the rank's span during which {listed} ran no kernel, copy or memset",
        "timeline.busy",
    )
    most = float(of["most_ns"] / of["span_ns"])
    beside = Figure(
        "busiest_gpu_frac",
        "Busiest GPU",
        most,
        "1",
        "share of the same span during which the busiest GPU ran a kernel, copy or memset",
        "timeline.busy",
    )
    text = (
        f"{listed} worked for under 10 % of the busiest GPU's time. That GPU works for "
        f"{beside.text} of the span."
    )
    verb = "is" if len(names) == 1 else "are"
    title = f"{listed} {verb} idle {figure.text} {of_the_time(view)} while another GPU works"
    gain = Gain(1.0, 1 / (1 - share), "best case: the work divides evenly over all GPUs", share)
    yield tell(GPU_UNUSED, title, text, (figure, beside), gain)


def _has_mpi(view: Selection) -> bool:
    names = view.run.ranges["name"].cat.categories
    return any(str(name).startswith("MPI_") for name in names)


def _never_used(view: Selection) -> Iterator[Finding]:
    """GPUs of the machine on which nothing ran. The list says what a machine has, not what the job was given.

    Nothing is known where GPUs were chosen, where ranks communicate (others may not have been recorded), or where
    kernels are of GPUs that are not in the list, since both then number the GPUs differently.
    """
    listed = set(view.run.devices["gpu"])
    working = {*view.run.kernels["gpu"].unique(), *view.run.copies["gpu"].unique()}
    is_alone = not view.all_kernels["family"].eq("communication").any() and not _has_mpi(view)
    if programs.is_chosen(view) or view.ranks or not is_alone or not working <= listed:
        return
    idle, used = sorted(listed - working), len(working)
    if not idle or not used:
        return
    count = len(idle)
    share = Figure(
        "never_used_frac",
        "GPUs never used",
        count / (used + count),
        "1",
        f"share of the {used + count} GPUs in the recording's list on which nothing ran",
        "KERNELS, DEVICES",
    )
    named_gpus = several([f"GPU {gpu}" for gpu in idle], 8)
    title = (
        f"{count} of {used + count} GPUs {'is' if count == 1 else 'are'} never used: {named_gpus}"
    )
    text = f"The recording lists {used + count} GPUs. Kernels and copies run on {used} of them."
    reason = "best case: the work divides evenly over all GPUs of the machine"
    gain = Gain(1.0, (used + count) / used, reason, whole="the program on all GPUs")
    yield tell(GPU_NEVER_USED, title, text, (share,), gain)
