"""The first page of a profile of call paths (HPCToolkit), in sentences: the verdict, and the place."""

from collections.abc import Mapping

from perfkit.analysis import calltree
from perfkit.diagnosis import path_ledger
from perfkit.diagnosis.finding import LEAST, Figure
from perfkit.format import percent, printable
from perfkit.names import parts as names
from perfkit.selection import Selection

OPERATIONS = {
    "<gpu copyin>": "copies to the GPU",
    "<gpu copyout>": "copies to the CPU",
    "<gpu kernel>": "kernels",
}


def verdict(view: Selection, figures: Mapping[str, Figure]) -> str:
    """Return how much of the wall time the GPU works, what takes the rest, and what the GPU's part can gain."""
    busy, wall = figures["paths_gpu_busy_frac"], figures["paths_wall_ns"]
    said = f"The GPU works {busy.text} of the {wall.text} wall time. {_rest(view)}"
    launches = figures.get("paths_launch_high_frac")
    taken = busy.value + (launches.value if launches else 0.0)
    if launches is None or 1 / (1 - min(taken, 0.99)) >= LEAST:
        return said
    little = f"Copies, stalls and launches take {percent(taken)} together"
    return f"{said} {little}: the potential is on the CPU."


def _rest(view: Selection) -> str:
    """Return what takes the time in which the GPU does nothing, in the words of the picture."""
    table = path_ledger.ledger(view)
    is_idle = table["kind"] == "idle"
    idle = names.shares(table[is_idle]) * (table.loc[is_idle, "ns"].sum() / table["ns"].sum())
    largest = str(idle.idxmax())
    share = percent(float(idle.max()))
    if largest == "cpu_not_recorded":
        return f"The cause of the other {share} is unknown: CPU time was not recorded."
    lines = table[(table["cause"] == largest) & table["owner"].notna()]
    said = f"Most of the rest is {names.TIME[largest]} ({share})"
    if lines.empty:
        return f"{said}."
    longest = lines.sort_values("ns", kind="stable").iloc[-1]
    place = printable(str(longest["owner"]), 60)
    return f"{said}, most of it at {place} ({percent(longest['ns'] / table['ns'].sum())})."


def place(view: Selection) -> str:
    """Return the line of Python below which most of the main thread's GPU time begins, and what runs there; or ""."""
    tree, metrics = view.run.calltree, view.run.call_metrics
    is_recorded = metrics["metric"].astype(str).eq("GPUOP").any() if len(metrics) else False
    if not is_recorded or not tree["entry"].eq("main thread").any():
        return ""
    path = calltree.hot_path(tree, metrics, metric="GPUOP", entry="main thread")
    lines = path[
        path["kind"].eq("line") & path["file"].astype("string").str.endswith(".py").fillna(False)
    ]
    if lines.empty:
        return ""
    deepest = lines.iloc[-1]
    file = printable(str(deepest["file"]).rpartition("/")[2], 80)
    ends = OPERATIONS.get(str(path["name"].iloc[-1]), "")
    what = f": {ends}" if ends else ""
    share = percent(float(deepest["share_frac"]))
    return f"{share} of the main thread's GPU time begins at {file}:{deepest['line']}{what}."
