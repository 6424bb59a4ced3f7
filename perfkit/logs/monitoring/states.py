"""How did each GPU spend the time of its log?

The ledger of a log books the time of each reading of the utilisation in one or two states: the
share in which a kernel ran in one, the rest in another. So the states of a GPU add up to the time
of its readings exactly.

A kernel ran:

- lowered by heat, lowered by power, lowered by another reason: the driver says that it lowered the clock;
- capped: lowered by power, though the GPU draws under 80 % of its own limit, so something else limits it;
- little power: kernels run nine tenths of the time and draw under 40 % of the limit. A GPU that waits in a collective
  looks so, and one that runs one small kernel at a time;
- working: nothing of that.

No kernel ran: not started, idle, ended (before, between and after the readings with work; idle too
where the GPU never works), or unused: the GPU never works, another one of its rank does, no program
holds memory there, and no other waits.

A reading below 5 % is no work: a display or a monitor causes as much. All thresholds are
conventions.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Bool, Float, Int, Window
from perfkit.analysis.readings import (
    BUSY,
    CAUSES,
    DEVICE,
    Readings,
    as_of,
    is_lowered,
    of_each,
    readings,
    wide,
)
from perfkit.diagnosis.logged import HARDLY
from perfkit.logs.monitoring.levels import rated_power
from perfkit.tables import DEVICES, SAMPLES

BY_CAUSE = {
    "thermal": "lowered by heat",
    "power": "lowered by power",
    "other": "lowered by another reason",
}
LOWERED = (*BY_CAUSE.values(), "capped")
STATES = ("working", "little power", *LOWERED, "idle", "not started", "ended", "unused")
FINE = 1_000_000  # the weight of a reading that is alone: 1 cannot be divided
ALL_THE_TIME, LITTLE_POWER = 0.9, 0.4
CAPPED = 0.8  # of the limit; a GPU that is at its own limit draws more
HELD = 0.1  # of the memory that the fullest GPU of the rank has in use


def ledger(
    samples: pd.DataFrame, devices: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return how long each GPU was in each state; a GPU without a reading of its utilisation has no row.

    `samples` is SAMPLES; `devices` is DEVICES, whose data sheet gives the power limit where none
    was recorded. Counters of lowered clocks do not say when and are left out.

    One row per rank, gpu and state (category: STATES) that takes time: `ns` int64, the weight in
    sums over GPUs: the time, or FINE for all of a GPU's readings at one moment; `dur_ns` Int64, the
    time, missing for these; `share_frac` float64, of the time of all readings of the GPU;
    `clock_frac`, `power_frac` float64, average SM clock over the recorded maximum and average power
    over the limit in this state, NaN where not recorded.
    """
    parts = _parts(samples, devices, window)
    weighted = parts.assign(
        clock=parts["clock_frac"] * parts["ns"], power=parts["power_frac"] * parts["ns"]
    )
    by = weighted.groupby([*DEVICE, "state"], observed=True)
    table = by[["ns"]].sum()
    table["dur_ns"] = table["ns"].astype("Int64").where(by["spans"].all())
    for name, column in (("clock_frac", "clock"), ("power_frac", "power")):
        known = weighted["ns"].where(weighted[column].notna())
        over = known.groupby([weighted[key] for key in (*DEVICE, "state")], observed=True).sum()
        table[name] = by[column].sum() / over.where(over > 0)
    table = table.reset_index()
    share = table["ns"] / table.groupby(DEVICE)["ns"].transform("sum")
    table.insert(5, "share_frac", share)
    return table


def _parts(samples: pd.DataFrame, devices: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    """Return the two parts of each reading that take time: rank, gpu, spans, state, ns, clock_frac, power_frac."""
    found = _utilised(samples, window)
    place = found.series[DEVICE].take(found.row_series).reset_index(drop=True)
    is_work = found.value >= HARDLY
    first, last = _worked(found, is_work)
    row = np.arange(len(found.time))
    inside = (row >= first) & (row <= last)
    share = np.where(inside, np.clip(found.value, 0, 1), 0)
    spans = found.spans[found.row_series]
    hold = found.hold * np.where(spans, 1, FINE)
    running_ns = np.rint(share * hold).astype(np.int64)
    columns = {
        "clock_frac": _recorded(samples, found, "sm_clock_hz")
        / _recorded(samples, found, "sm_max_clock_hz"),
        "power_frac": _recorded(samples, found, "power_w") / _limit(samples, devices, found),
    }
    frame = place.assign(spans=spans, **columns)
    running = frame.assign(
        state=_while_running(samples, found, columns["power_frac"]), ns=running_ns
    )
    between = np.where(row < first, "not started", np.where(row > last, "ended", "idle"))
    rest = frame.assign(state=between, ns=hold - running_ns)
    rest["state"] = _without_work(samples, found, running, rest)
    both = pd.concat([running, rest], ignore_index=True)
    both["state"] = pd.Categorical(both["state"], STATES)
    return both[both["ns"] > 0]


def last_work(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return when the last reading with work ends, for each GPU that works: rank, gpu, end_ns int64."""
    found = _utilised(samples, window)
    _, last = _worked(found, found.value >= HARDLY)
    row = last[found.first]
    table = found.series[DEVICE].assign(end_ns=found.time[row] + found.hold[row])
    return table[row >= 0].reset_index(drop=True)


def _utilised(samples: pd.DataFrame, window: Window | None) -> Readings:
    """Return the readings of the utilisation, of each GPU by the first metric of BUSY that it has."""
    kept = SAMPLES.check(samples)
    kept = kept[kept["metric"].isin(BUSY) & kept["value"].notna() & (kept["gpu"] >= 0)]
    is_best = kept["metric"].eq(BUSY[0])
    has_best = is_best.groupby([kept[key] for key in DEVICE]).transform("any")
    return readings(kept[is_best | ~has_best], *BUSY, window=window)


def _worked(found: Readings, is_work: Bool) -> tuple[Int, Int]:
    """Return, at each reading, the first and the last reading of its GPU with work; -1 where none has."""
    row = np.arange(len(is_work))
    most = len(is_work)
    first = _of_each(np.minimum, found, np.where(is_work, row, most))
    last = _of_each(np.maximum, found, np.where(is_work, row, -1))
    return np.where(last < 0, -1, first), last


def _of_each(over: np.ufunc, found: Readings, value: Int) -> Int:
    """Return a reduction over the readings of each GPU, at each of its readings."""
    if not len(found.first):
        return value
    return np.asarray(over.reduceat(value, found.first), np.int64)[found.row_series]


def _recorded(samples: pd.DataFrame, found: Readings, metric: str) -> Float:
    """Return the latest value of a metric at each reading; NaN where it has none, or 0."""
    value = as_of(readings(samples, metric), found)
    return np.where(value > 0, value, np.nan)


def _limit(samples: pd.DataFrame, devices: pd.DataFrame, found: Readings) -> Float:
    """Return the power limit at each reading: the recorded one, else the data sheet's."""
    recorded = _recorded(samples, found, "power_limit_w")
    return np.where(np.isnan(recorded), rated_power(found, DEVICES.check(devices)), recorded)


def _while_running(samples: pd.DataFrame, found: Readings, power: Float) -> NDArray[Any]:
    """Return the state of each reading in the time in which a kernel runs."""
    lowered = {cause: is_lowered(samples, found, cause) for cause in CAUSES}
    waits = (found.value >= ALL_THE_TIME) & (power < LITTLE_POWER)
    states = [
        (lowered["thermal"], BY_CAUSE["thermal"]),
        (lowered["power"] & (power < CAPPED), "capped"),
        (lowered["power"], BY_CAUSE["power"]),
        (waits, "little power"),
        (lowered["other"], BY_CAUSE["other"]),
    ]
    conditions, names = zip(*states, strict=True)
    return np.select(conditions, names, "working")


def _without_work(
    samples: pd.DataFrame, found: Readings, running: pd.DataFrame, rest: pd.DataFrame
) -> pd.Series:
    """Return the states of the time without a kernel, for GPUs that never work too.

    Such a GPU is unused beside another one of its rank that works. It is idle if it has a part in
    the work: a program holds memory there, or where the memory is not known another GPU waits.
    """
    works = pd.Series(
        _of_each(np.maximum, found, (found.value >= HARDLY).astype(np.int64)) > 0, rest.index
    )
    by_rank = works.groupby(rest["rank"]).transform("any")
    waits = running["state"].eq("little power").groupby(rest["rank"]).transform("any")
    held = _held(samples, rest)
    takes_part = held.fillna(waits.astype(float)).astype(bool)
    state = rest["state"].where(works, "idle")
    return state.mask(~works & by_rank & ~takes_part, "unused")


def _held(samples: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Return 1 where a program held memory on the GPU of a row at any time, 0 where none did, NaN where unrecorded."""
    found = readings(samples, "memory_used_bytes")
    highest = of_each(np.maximum, found, found.value)
    used = wide(found, highest, ("memory_used_bytes",))["memory_used_bytes"]
    most = used.groupby(level="rank").transform("max") if len(used) else used
    is_held = (used >= HELD * most).astype("float64").where(used.notna())
    index = pd.MultiIndex.from_frame(rows[DEVICE])
    return pd.Series(is_held.reindex(index).to_numpy("float64"), rows.index)
