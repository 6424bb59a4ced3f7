"""Who kept the GPU idle for a cause: the function or the call that a finding names in its title."""

import re
from typing import NamedTuple

import pandas as pd

from perfkit.analysis import owners
from perfkit.analysis.stacks import functions, printing, shown
from perfkit.diagnosis import timeline
from perfkit.format import printable
from perfkit.selection import Selection

# Inductor writes a module for each graph, named by a hash in base 32.
COMPILED = re.compile(r"\bc[a-z2-7]{51}\.py\(\d+\): call$")
RECOMPILE = (
    "Run the same steps under torch.compile(mode='reduce-overhead'), and compare the two runs"
)
MOST = 0.5  # share of the idle time that makes an owner
OWNED_CAUSES = ("host_code", "system")  # where the owner says more than the cause
IN_CALL = (
    "Look at this call in step 3, and time the code around it with an NVTX range (nvtxRangePush)"
)
IN_SAMPLES = "Open step 3 at these gaps: it shows the functions that the recorded call stacks name"
IN_PYTHON = "Open step 5 at these gaps: it shows the calls of Python around `{name}`"
IN_FUNCTION = (
    "Record the lines of `{name}` that take the time: perf record -g PROGRAM, then perf annotate"
)


class Owner(NamedTuple):
    """Who owns most of the idle time with a cause: its name, what it did, more of it, and what to measure next."""

    name: str = ""
    subject: str = ""
    text: str = ""
    next: str = ""


def owner_of(view: Selection, cause: str) -> Owner:
    """Return who owns at least half of the idle time with a cause.

    Nobody where the recording does not name one.
    """
    if cause not in (*OWNED_CAUSES, "data_loading"):
        return Owner()
    every = timeline.owned(view)
    rows = every[(every["detail"] == cause).to_numpy()]
    by_owner = owners.summary(rows)
    by_owner = by_owner[by_owner["owner_kind"].isin(["function", "os_call"]).to_numpy()]
    unknown = Owner(next=IN_SAMPLES) if len(view.stacks) else Owner()
    groups = by_owner.groupby(["owner_kind", "owner", "caller"], observed=True, dropna=False)
    most = groups.agg({"total_ns": "sum", "certain": "all"}).reset_index().nlargest(1, "total_ns")
    if most.empty or most["total_ns"].iloc[0] < MOST * rows["dur_ns"].sum():
        return unknown
    first = most.iloc[0]
    name = shown(str(first["owner"]))
    if first["owner_kind"] == "os_call":
        return _in_call(view, every, printable(name, 80), _text(first["caller"]))
    return _in_function(view, str(first["owner"]), printable(name, 80), bool(first["certain"]))


def _in_call(view: Selection, every: pd.DataFrame, name: str, caller: str) -> Owner:
    """Return the owner that is a call of the operating system, with who asked for it and who ran meanwhile."""
    asked = f", called by `{printable(shown(caller), 80)}`," if caller else ""
    text = f" The CPU spent most of it in `{name}`{asked.rstrip(',')}."
    named = (
        every[every["owner_kind"].eq("function").to_numpy()]
        .groupby("owner", observed=True)["dur_ns"]
        .sum()
    )
    text += _samples_in(view, str(named.idxmax())) if len(named) else ""
    gaps = timeline.every_gap(view)
    others = owners.elsewhere(gaps, view.stacks)
    others = others[~others["process"].isin(gaps["process"]).to_numpy()]
    if others["samples"].sum() >= owners.FEWEST:
        sampled = others.groupby("process")["samples"].sum().nlargest(1)
        process = sampled.index[0]
        count = int(sampled.iloc[0])
        text += (
            f" At the same time process {process} ran: {count:,} samples of its threads fall into "
            "these gaps."
        )
    return Owner(name, f"was in `{name}`{asked}", text, IN_CALL)


def _in_function(view: Selection, owner: str, name: str, certain: bool) -> Owner:
    """Return the owner that is a function, with the samples in all gaps that name it."""
    text = _samples_in(view, owner)
    if COMPILED.search(owner):
        return Owner(name, "ran Python code that torch.compile made", text, RECOMPILE)
    known = view.python_calls["name"].cat.categories
    further = (IN_PYTHON if owner in known else IN_FUNCTION).format(name=name)
    samples = owners.samples_in(timeline.every_gap(view), view.api_calls, view.stacks)
    does = " (printing)" if printing(samples, view.frames, owner) >= MOST else ""
    return Owner(name, f"{'ran' if certain else 'perhaps ran'} `{name}`{does}", text, further)


def _samples_in(view: Selection, function: str) -> str:
    """Say how many samples of the launching thread in all gaps hold a function.

    Nothing where none does.
    """
    samples = owners.samples_in(timeline.every_gap(view), view.api_calls, view.stacks)
    counts = functions(samples, view.frames)
    count = int(counts.loc[counts["function"].eq(function).to_numpy(), "inclusive_count"].sum())
    name = printable(shown(function), 80)
    return (
        f" {count:,} of the {len(samples):,} samples of this thread in all gaps lie in `{name}`."
        if count
        else ""
    )


def _text(value: object) -> str:
    """Return a text, empty where it is missing."""
    return value if isinstance(value, str) else ""
