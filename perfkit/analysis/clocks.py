"""How far apart are the clocks of the ranks, and what do their collectives lose once the clocks agree?

No rank leaves an all-reduce, all-gather, reduce-scatter, all-to-all or barrier before all have
come, and then all leave it together: on eight V100 of a node the ends lie 1 to 7 µs apart, the
starts up to 7.6 ms (tests/analysis/ test_clocks.py). So the difference of the ends on two ranks is
the difference of their clocks. `offsets` fits a line to it, `aligned` moves the times of a table by
it, and nothing else in perfkit moves a time. The error is how far the ends of one collective
scatter around the line. The recordings must begin with the same collective. A clock is not known
where the ends fit better to collectives before or after, or lie farther apart than the transfer
lasted. Ranks with different numbers of collectives are matched from the first on, if their ends fit
to no others.
"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import covered
from perfkit.analysis.communication import matched, with_start
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Float, ends, union
from perfkit.schema import Column, Table
from perfkit.tables import COLLECTIVES, KERNELS, RANK

CLOCKS = Table(
    "CLOCKS",
    "the clock of a rank, against that of the lowest rank with collectives",
    (
        RANK,
        Column("count", "int64", "collectives that compare it with another rank"),
        Column(
            "offset_ns",
            "float64",
            "by which it is ahead at time 0 of the run, ns; NaN when not known",
        ),
        Column(
            "drift_frac",
            "float64",
            "by which it runs fast, s/s; 0 where no drift is seen, NaN when not known",
        ),
        Column("error_ns", "float64", "by which the offset can be wrong, ns; NaN when not known"),
        Column("moved", "bool", "whether `aligned` moves its times: the offset exceeds its error"),
        Column("verdict", "category", "what follows, in words"),
    ),
    ("rank",),
)
LOSSES = Table(
    "LOSSES",
    "where the time of a process group's collectives goes",
    (
        Column("group", "category", "process group; missing when not recorded"),
        Column("span", "category", "within a node, across nodes, or not known"),
        Column("ranks_count", "int64", "ranks of the group"),
        Column(
            "count",
            "int64",
            "collectives that all of them recorded, and in which all were at one moment",
        ),
        Column(
            "transfer_ns",
            "float64",
            "sum of the transfers: the shortest duration over the ranks, ns",
        ),
        Column(
            "skew_ns",
            "float64",
            "sum of what the first rank waited for the last, whose GPU worked for longer, ns",
        ),
        Column(
            "dispatch_ns",
            "float64",
            "the same where the GPU of the last rank had nothing to do for longer, ns",
        ),
        Column(
            "error_ns",
            "float64",
            "by which each wait can be wrong: the error of the clocks, ns; NaN not known",
        ),
        Column(
            "verdict", "category", "transfer, arrival skew, host dispatch, mixed or inconclusive"
        ),
    ),
    ("group", "span"),
)
LEAVE_TOGETHER = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
BY_NAME = {
    "all_reduce": "all_?reduce",
    "all_gather": "all_?gather",
    "reduce_scatter": "reduce_?scatter",
    "all_to_all": "all_?to_?all|send_?recv",
}
FEWEST = 5  # collectives that tell an offset (convention)
BINS = 100  # medians of equally many collectives, through which the line goes
LAGS = 3  # by which collectives one of two recordings may begin later
BETTER = 0.7  # of the scatter, below which a later beginning fits better
SEEN = 2.0  # standard errors that a drift must exceed
MOST_DRIFT = 2e-4  # s/s: crystals of computers stay below 100e-6, and step times do not
POSSIBLE = 0.9  # of the collectives must end as near to each other as the transfer allows
MOST_OF = 0.6  # of the time in collectives is what the verdict names (convention)
NORMAL = 1.4826  # standard deviations in a median absolute deviation of a normal distribution


class Clock(NamedTuple):
    """A clock against another: ahead by offset_ns + drift_frac * time, give or take error_ns; or why nobody knows."""

    offset_ns: float = np.nan
    drift_frac: float = np.nan
    error_ns: float = np.nan
    compared: int = 0  # collectives
    reason: str = ""


class Recorded(NamedTuple):
    """When the collectives of a process group end on a rank and how long they last, ns, and how many it recorded."""

    end_ns: Float
    dur_ns: Float
    recorded: int


def of_ranks(collectives: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the COLLECTIVES that can be matched over ranks: with their sizes, else kernels by their names.

    Nsight Systems and PyTorch before 2.4 record no sizes and no process groups: their rows have 0
    bytes, and are empty where the ranks have different numbers of an operation. Never compute a
    bandwidth from them.
    """
    timed, every = with_start(collectives), KERNELS.check(kernels)
    if len(set(timed["rank"])) > 1:
        return COLLECTIVES.make(timed)
    rows = every[every["family"] == "communication"]
    names = rows["full_name"].astype("category").cat
    found = [
        next((o for o, text in BY_NAME.items() if re.search(text, n, re.I)), None)
        for n in names.categories
    ]
    rows = rows.assign(operation=np.array([*found, None], object)[names.codes.to_numpy()])
    counts = (
        rows.groupby(["operation", "rank", "gpu"])
        .size()
        .groupby(level=0)
        .agg(["min", "max", "size"])
    )
    same = counts[
        counts["min"].eq(counts["max"]) & counts["size"].eq(rows.groupby(["rank", "gpu"]).ngroups)
    ]
    rows = rows[rows["operation"].isin(same.index)].assign(bytes=0, source="trace")
    known = ["rank", "gpu", "start_ns", "operation", "bytes", "dur_ns", "source"]
    return COLLECTIVES.make(rows[known])


def offsets(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return how far ahead the clock of each rank is: CLOCKS, one row per rank with collectives; empty for one rank.

    Ranks that share no process group with the lowest rank are compared over ranks in between; their
    errors add up, as independent errors do. Of a rank with several GPUs the first one counts.

    Source: Becker, Rabenseifner, Wolf: Implications of non-constant clock drifts for the timestamps
    of concurrent events, CLUSTER 2008 (linear interpolation, and the clock condition that no
    message arrives before it was sent).
    """
    timed = with_start(collectives)
    timed = timed[timed["gpu"] == timed.groupby("rank")["gpu"].transform("min")]
    timed = timed[timed["operation"].isin(LEAVE_TOGETHER)]
    every = [int(rank) for rank in np.unique(timed["rank"])]
    if len(every) < 2:
        return CLOCKS.empty()
    clocks = {every[0]: Clock(0.0, 0.0, 0.0)}
    reasons: dict[int, str] = {}
    teams = sorted(_teams(timed), key=lambda team: -max(of.recorded for of in team.values()))
    while team := next((team for team in teams if clocks.keys() & team.keys()), None):
        teams = [other for other in teams if other is not team]
        via = min(clocks.keys() & team.keys(), key=lambda rank: (clocks[rank].error_ns, rank))
        for rank in sorted(team.keys() - clocks.keys()):
            clock = _compared(team[via], team[rank])
            if clock.reason:
                reasons.setdefault(rank, clock.reason)
            else:
                base = clocks[via]
                error_ns = float(np.hypot(base.error_ns, clock.error_ns))
                clocks[rank] = Clock(
                    base.offset_ns + clock.offset_ns,
                    base.drift_frac + clock.drift_frac,
                    error_ns,
                    clock.compared,
                )
    end = int((timed["start_ns"] + timed["dur_ns"].fillna(0)).max())
    unknown = "not known: it shares no process group with a rank whose clock is known"
    rows = []
    for rank in every:
        clock = clocks.get(rank) or Clock(reason=reasons.get(rank, unknown))
        most = max(abs(clock.offset_ns), abs(clock.offset_ns + clock.drift_frac * end))
        moved = most > clock.error_ns  # False where nothing is known
        verdict = "agrees within the error" if clock.compared else "the reference"
        if moved:
            verdict = "moved"
        rows.append((rank, clock.compared, *clock[:3], moved, clock.reason or verdict))
    return CLOCKS.make(pd.DataFrame(rows, columns=list(CLOCKS.column_names)))


def _teams(timed: pd.DataFrame) -> list[dict[int, Recorded]]:
    """Return the collectives of each process group by rank, of each kind as many as all of its ranks have."""
    kinds, kind = numbered(timed, ["group", "operation", "bytes", "ranks"])
    _, team = numbered(kinds, ["group"])
    timed = timed.assign(kind=kind, team=team[kind], end_ns=timed["start_ns"] + timed["dur_ns"])
    timed = timed.sort_values(["kind", "start_ns"], kind="stable")
    counts = timed.groupby(["kind", "rank"]).size().groupby(level=0).agg(["min", "size"])
    members = timed.groupby("team")["rank"].nunique().to_numpy()[team]  # of the group of each kind
    # Else several groups share the name
    is_one = ~(kinds["ranks"].to_numpy(np.float64, na_value=np.nan) < members)
    usable = (counts["size"].to_numpy() == members) & is_one
    place = timed.groupby(["kind", "rank"]).cumcount().to_numpy()
    kept = timed[usable[timed["kind"]] & (place < counts["min"].to_numpy()[timed["kind"]])]
    every = timed.groupby(["team", "rank"]).size()
    teams: dict[int, dict[int, Recorded]] = {}
    for (number, rank), of in kept.groupby(["team", "rank"]):
        end, dur = of[["end_ns", "dur_ns"]].to_numpy(np.float64).T
        teams.setdefault(number, {})[rank] = Recorded(end, dur, int(every[number, rank]))
    return list(teams.values())


def _compared(reference: Recorded, other: Recorded) -> Clock:
    """Return a clock against a reference, from when the same collectives end on both.

    Of recordings with different numbers these ends must fit clearly better than those before or
    after.
    """
    known = ~np.isnan(reference.end_ns + other.end_ns)
    time, later = reference.end_ns[known], other.end_ns[known]
    transfer, count = np.minimum(reference.dur_ns, other.dur_ns)[known], len(later)
    if count < FEWEST:
        return Clock(reason=f"not known: fewer than {FEWEST} collectives in common")
    ahead = later - time
    # The median slope between all pairs of bins (Theil and Sen); a bin is at its medians.
    order = np.argsort(time, kind="stable")
    bins = np.array_split(order, min(BINS, len(time)))
    at, value = (np.array([np.median(values[of]) for of in bins]) for values in (time, ahead))
    first, second = np.triu_indices(len(at), 1)
    apart = at[second] - at[first]
    slopes = (value[second] - value[first])[apart > 0] / apart[apart > 0]
    drift = float(np.median(slopes)) if len(slopes) else 0.0
    error = _scatter(ahead - drift * time)
    if abs(drift) * np.ptp(time) <= SEEN * error * np.sqrt(
        12 / count
    ):  # error of a slope through even points
        drift = 0.0
    offset = float(np.median(ahead - drift * time))
    resolution = float(np.gcd.reduce(np.concatenate([time, later]).astype(np.int64)))
    error = max(_scatter(ahead - drift * time), resolution)
    shifted = [_scatter(later[k:] - (1 + drift) * time[: count - k]) for k in range(1, LAGS + 1)]
    shifted += [_scatter(later[: count - k] - (1 + drift) * time[k:]) for k in range(1, LAGS + 1)]
    if min(shifted) < error * (BETTER if reference.recorded == other.recorded else 1 / BETTER):
        return Clock(
            reason=(
                "not known: the ends fit as well to collectives before or after. Are these the "
                "same steps?"
            )
        )
    if abs(drift) > MOST_DRIFT:
        return Clock(
            reason=(
                "not known: the times drift apart faster than clocks do. Are these the same steps?"
            )
        )
    if np.mean(np.abs(ahead - drift * time - offset) <= transfer + 2 * resolution) < POSSIBLE:
        return Clock(
            reason=(
                "not known: ends lie farther apart than the transfers last. Are these the same "
                "steps?"
            )
        )
    return Clock(offset, drift, 2 * error, count)  # twice a standard deviation of one collective


def _scatter(values: Float) -> float:
    return NORMAL * float(np.median(np.abs(values - np.median(values))))


def aligned(frame: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """Return a table with `rank` and `start_ns` whose times are on the clock of the lowest rank.

    `clocks` is what `offsets` returned; ranks that it does not move stay as they are. Durations
    stay.
    """
    moved = CLOCKS.check(clocks)[clocks["moved"]].set_index("rank")
    offset, drift = (
        frame["rank"].map(moved[name]).fillna(0.0) for name in ("offset_ns", "drift_frac")
    )
    ahead = (offset + drift * frame["start_ns"].astype("Float64")).round().fillna(0).astype("int64")
    return frame.assign(start_ns=frame["start_ns"] - ahead)


def per_node(devices: pd.DataFrame) -> int:
    """Return how many GPUs each rank lists, which are those of its node; 0 where it may see its own only."""
    least = devices.groupby("rank").size().min() if len(devices) else 0
    return int(least) if least > 1 else 0


def losses(
    collectives: pd.DataFrame,
    kernels: pd.DataFrame,
    clocks: pd.DataFrame,
    *,
    gpus_per_node: int = 0,
) -> pd.DataFrame:
    """Return where the time of collectives goes, by process group: LOSSES; empty where no ranks were together.

    The *transfer* is the time after the last rank came. What the first rank waited before is *host
    dispatch* as far as the GPU of the last rank was idle for longer than its own since the
    collective before, and else *arrival skew*. A verdict names what is MOST_OF the time. It is
    inconclusive for fewer than FEWEST collectives, where a clock is not known, and where waits are
    shorter than the errors of the clocks.

    `collectives` and `kernels` are as recorded; `clocks`, what `offsets` returned, are applied to
    the collectives here. `gpus_per_node`: ranks are counted node by node, so many to each; 0 when
    not known, and then `span` is not known.
    """
    timed = with_start(collectives)
    timed = timed.assign(idle_ns=_idle_between(timed, kernels))
    moved = aligned(timed, clocks)
    rows = matched(COLLECTIVES.make(moved.drop(columns="idle_ns")))
    keys = ["rank", "gpu", "start_ns"]
    rows = rows[rows["together"]].merge(
        moved[[*keys, "idle_ns"]].drop_duplicates(keys), on=keys, how="left"
    )
    rows = rows.assign(
        node=rows["rank"] // gpus_per_node if gpus_per_node > 1 else 0,
        error_ns=rows["rank"].map(clocks.set_index("rank")["error_ns"]).fillna(np.inf),
    )
    # The last to come is first
    of = rows.sort_values(["collective", "wait_ns"], kind="stable").groupby("collective")
    each = of.agg(
        group=("group", "first"),
        nodes=("node", "nunique"),
        ranks_count=("rank", "nunique"),
        transfer_ns=("dur_ns", "min"),
        wait_ns=("wait_ns", "max"),
        last_idle_ns=("idle_ns", "first"),
        first_idle_ns=("idle_ns", "last"),
        error_ns=("error_ns", "max"),
    )
    spans = (
        np.where(each["nodes"] > 1, "across nodes", "within a node")
        if gpus_per_node > 1
        else "not known"
    )
    dispatch = (each["last_idle_ns"] - each["first_idle_ns"]).clip(0, each["wait_ns"])
    each = each.assign(
        span=spans, dispatch_ns=dispatch, skew_ns=each["wait_ns"] - dispatch, count=1
    )
    sums = dict.fromkeys(("count", "transfer_ns", "skew_ns", "dispatch_ns"), "sum")
    of_group = each.astype({"group": object}).groupby(
        ["group", "span"], dropna=False, as_index=False
    )
    table = of_group.agg({"ranks_count": "max", **sums, "error_ns": "max"})
    table["error_ns"] = table["error_ns"].replace(np.inf, np.nan)
    return LOSSES.make(table.assign(verdict=[_verdict(row) for _, row in table.iterrows()]))


def _verdict(row: pd.Series) -> str:
    parts = {
        "transfer": row["transfer_ns"],
        "arrival skew": row["skew_ns"],
        "host dispatch": row["dispatch_ns"],
    }
    name, most = max(parts.items(), key=lambda item: item[1])
    unsure = name != "transfer" and not most / row["count"] > row["error_ns"]
    if row["count"] < FEWEST or np.isnan(row["error_ns"]) or unsure or not most:
        return "inconclusive"
    return name if most >= MOST_OF * sum(parts.values()) else "mixed"


def _idle_between(timed: pd.DataFrame, kernels: pd.DataFrame) -> pd.Series:
    """Return how long the GPU of each collective ran nothing since the one before it started, ns."""
    idle = pd.Series(0, timed.index)
    of_gpu = dict(iter(KERNELS.check(kernels).groupby(["rank", "gpu"])))
    for key, rows in timed.sort_values("start_ns", kind="stable").groupby(["rank", "gpu"]):
        if key in of_gpu:
            work = union(*ends(of_gpu[key]))
            at = np.append(work.start[0], rows["start_ns"].to_numpy())
            idle[rows.index] = np.diff(at) - covered(work, at[:-1], at[1:])
    return idle
