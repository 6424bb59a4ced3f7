"""What limits the measured launches: a bar of all of them, and one of each kernel with most of their time."""

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.checks import need
from perfkit.charts.kernels import LONGEST_STALLED
from perfkit.charts.shares import bars, ends, figures
from perfkit.charts.theme import WIDTH, hover, layered, nothing
from perfkit.format import duration, elided, percent
from perfkit.names.parts import LIMIT

LIMIT_COLOURS: dict[str, str] = theme.COLOURS["limit"]
DARK = (
    "few threads",
    "last wave",
    "tensor",
    "fp64",
    "fma",
    "fmaheavy",
    "fp16",
    "alu",
    "xu",
    "sm",
    "l2",
    "cache",
)
ALL, OTHERS = "all measured launches", "all other kernels"
MOST_KERNELS = 5
NO_LAUNCH = "No launch with a time was measured. Record with `ncu --set full -o report PROGRAM`."


def limits(ledger: pd.DataFrame) -> alt.LayerChart:
    """Draw the time of measured launches by what limits them, of all and of the kernels with most of it.

    `ledger`: columns cause (one of `analysis.limiters.LIMITS`), owner (the kernel), ns, as from
    `diagnosis.counter_ledger.ledger`.
    """
    need(ledger, "cause", "owner", "ns")
    whole = int(ledger["ns"].sum())
    if not whole:
        return nothing("No measured launches", NO_LAUNCH)
    drawn = _segments(ledger, whole)
    order = list(dict.fromkeys(drawn["label"]))
    present = set(drawn["key"])
    shown = [key for key in LIMIT if key in present]
    shades = alt.Scale(
        domain=[LIMIT[key] for key in shown], range=[LIMIT_COLOURS[key] for key in shown]
    )
    tips = hover(("label", "kernel"), ("limit", "limited by"), "share", ("told", "time"))
    last = drawn.groupby("label", sort=False).tail(1)
    place = alt.Y("label:N", title=None, sort=order)
    return layered(
        [
            bars(drawn, "limit", shades, axis="share of the measured time", shown=tips),
            figures(drawn, "limit", [LIMIT[key] for key in DARK]),
            theme.words(last[last["end"] < 0.85], alt.X("end:Q"), place, alt.Text("total:N"), dx=4),
        ],
        _title(drawn),
        "A launch counts for the first of its limits in the order of the hardware: grid, pipes, caches, DRAM, latency.",
        picture=f"Stacked bars of {', '.join(LIMIT[key] for key in shown)}",
        size=(WIDTH - 180, alt.Step(24)),
    )


def _segments(ledger: pd.DataFrame, whole: int) -> pd.DataFrame:
    """Return the segments of each bar: label, key, limit, begin, end, share, told, and the share of the bar (total)."""
    lines = pd.DataFrame(
        {"owner": ledger["owner"].astype(object), "key": ledger["cause"].astype(object)}
    )
    lines["ns"] = ledger["ns"].to_numpy()
    by_kernel = lines.groupby("owner")["ns"].sum().sort_values(ascending=False, kind="stable")
    longest = by_kernel.index[:MOST_KERNELS]
    labels = {name: elided(name, LONGEST_STALLED) for name in longest}
    own = lines.assign(label=lines["owner"].map(labels).fillna(OTHERS))
    every = lines.assign(label=ALL)
    rows = pd.concat([every, own], ignore_index=True) if len(by_kernel) > 1 else own
    place = [ALL, *labels.values(), OTHERS]
    summed = rows.groupby(["label", "key"], as_index=False)["ns"].sum()
    by_label = {label: at for at, label in enumerate(place)}
    by_key = {key: at for at, key in enumerate(LIMIT)}
    summed = summed.assign(at=summed["label"].map(by_label), order=summed["key"].map(by_key))
    summed = summed.sort_values(["at", "order"], ignore_index=True)
    begin, end = ends(summed["ns"] / whole, summed["label"])
    total = summed.groupby("label")["ns"].transform("sum") / whole
    drawn: pd.DataFrame = summed[["label", "key"]].assign(
        limit=summed["key"].map(LIMIT),
        begin=begin,
        end=end,
        share=(summed["ns"] / whole).map(percent),
        told=summed["ns"].map(duration),
        total=total.map(percent),
    )
    return drawn


def _title(drawn: pd.DataFrame) -> str:
    """Return what limits most of the time."""
    of_all = drawn[drawn["label"] == drawn["label"].iloc[0]]
    largest = of_all.iloc[int((of_all["end"] - of_all["begin"]).to_numpy().argmax())]
    return f"Limit of {largest['share']} of the measured time: {largest['limit']}"
