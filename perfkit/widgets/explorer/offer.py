"""What a run lets a person choose from.

Functions
---------
lanes_of   the sorted kernels and copies of a run, made once per run
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pandas as pd

from perfkit import choice
from perfkit.analysis.lanes import Lanes
from perfkit.names import FAMILIES, family
from perfkit.run import Run

_LANES: WeakKeyDictionary[Run, Lanes] = WeakKeyDictionary()  # a cell that is run again does not sort again


def lanes_of(run: Run) -> Lanes:
    """Return the Lanes of a run."""
    if run not in _LANES:
        _LANES[run] = Lanes(run.kernels, run.copies)
    return _LANES[run]


class Offer:
    """Ranks, GPUs, kernel names, families and the time axis of a run.

    `places` are the pairs of rank and GPU with activity; `names` has name, family and total_ns, most time first;
    `span` is the time axis in ns, empty where a window has no meaning.
    """

    def __init__(self, run: Run, lanes: Lanes) -> None:
        self.places = _places(run, lanes)
        ranks = {int(rank) for rank in run.capture["rank"]} | {rank for rank, _ in self.places}
        self.ranks, self.gpus = tuple(sorted(ranks)), tuple(sorted({gpu for _, gpu in self.places}))
        self.names = lanes.names if len(lanes.names) else _measured(run)
        self.families = _families(run, lanes)
        self.span = _span(run, lanes)


def _places(run: Run, lanes: Lanes) -> set[tuple[int, int]]:
    """Return the devices with activity; the operations of the timeline were looked through for the lanes."""
    rest = [run.table(name) for name in choice.ACTIVE if name not in ("KERNELS", "COPIES")]
    pairs = [frame[["rank", "gpu"]].drop_duplicates() for frame in (lanes.devices, *rest)]
    return {(int(rank), int(gpu)) for frame in pairs for rank, gpu in zip(frame["rank"], frame["gpu"], strict=True)}


def _measured(run: Run) -> pd.DataFrame:
    """Return the kernels that only counters know, in the order of their time."""
    launches = run.launches
    total = launches.groupby("name", observed=True)["dur_ns"].sum().sort_values(ascending=False, kind="stable")
    return pd.DataFrame({"name": total.index, "family": None, "total_ns": total.to_numpy()})


def _families(run: Run, lanes: Lanes) -> tuple[str, ...]:
    """Return the families of which a kernel was timed or counted."""
    counted = {family(str(name)) for name in run.launches["full_name"].cat.categories}
    return tuple(one for one in FAMILIES if one in counted or lanes.matching("", [one]).any())


def _span(run: Run, lanes: Lanes) -> tuple[int, ...]:
    """Return the axis of time: from the first to the last operation, or the recording where there is none."""
    if len(lanes.devices):
        return lanes.span if lanes.span[1] > lanes.span[0] else ()
    if any(len(run.table(name)) for name in (*choice.TIMED, "SAMPLES")):
        start, end = choice.extent(run)
        return (start, end) if end > start else ()
    return ()
