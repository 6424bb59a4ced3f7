"""Where did the wall time go? The third question of a diagnosis, for a profile of call paths (HPCToolkit).

Wall time = kernels of the GPU + its copies + the rest by call path of the CPU, or "CPU time not recorded". The lines
are those of `analysis.calltree.wall`, with the columns of the ledger of a timeline (`diagnosis.ledger`).
"""

import pandas as pd

from perfkit.analysis import calltree
from perfkit.analysis.calltree import wall
from perfkit.analysis.ledger import LEDGER
from perfkit.diagnosis.paths import wall_ns
from perfkit.diagnosis.stored import kept
from perfkit.selection import Selection

WORK = ["kernel_ns", "copy_ns", "implicit_copy_ns", "memset_ns"]


@kept
def ledger(view: Selection) -> pd.DataFrame:
    """Return `analysis.ledger.LEDGER` of a run; empty without work of a GPU.

    Without the length of the run, the whole is the time of the GPU's operations.
    """
    run = view.run
    if run.calltree.empty:
        return LEDGER.empty()
    summary = calltree.gpu_summary(run.calltree, run.call_metrics)
    summary = summary[summary[WORK].sum(axis=1) > 0]
    length = wall_ns(view)
    works = _against_wall(view, summary, length) if length and len(summary) else _alone(summary)
    return wall.ledger(works, _cpu(view, length))


def _against_wall(view: Selection, summary: pd.DataFrame, length: float) -> dict[int, wall.Work]:
    """Return the work of each rank within wall time x GPUs."""
    run = view.run
    used = calltree.utilisation(
        run.calltree, run.call_metrics, run.trace, run.threads, wall_ns=length
    )
    of_rank = summary.set_index("rank").fillna(0.0)
    works = {}
    for row in used.to_dict("records"):
        own = of_rank.loc[row["rank"]]
        copies = own["copy_ns"] + own["implicit_copy_ns"]
        works[row["rank"]] = wall.Work(
            row["denominator_ns"], row["high_ns"], own["kernel_ns"], copies
        )
    return works


def _alone(summary: pd.DataFrame) -> dict[int, wall.Work]:
    """Return the work of each rank where it is all that is known."""
    works = {}
    for row in summary.fillna(0.0).to_dict("records"):
        copies = row["copy_ns"] + row["implicit_copy_ns"]
        busy = row["kernel_ns"] + copies + row["memset_ns"]
        works[row["rank"]] = wall.Work(busy, busy, row["kernel_ns"], copies)
    return works


def _cpu(view: Selection, length: float | None) -> pd.DataFrame:
    """Return the paths of the CPU with their share of the wall time (`frac`); none where either is unknown."""
    run = view.run
    metric = calltree.host_metric(run.call_metrics)
    if not metric or not length:
        return pd.DataFrame({"rank": [], "name": [], "frac": []})
    parts = wall.branches(run.calltree, run.call_metrics, metric=metric)
    return parts.assign(frac=parts["value"] * calltree.HOST[metric] / length)
