"""How each GPU of a log spent its time: a stacked bar per GPU."""

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.checks import need
from perfkit.charts.shares import TIME_COLOURS, TIME_NAMES, bars, ends, figures
from perfkit.charts.theme import STATE_COLOURS, WIDTH, hover, layered, nothing
from perfkit.format import duration, percent
from perfkit.names.parts import SMALL as SMALL_FRAC

MOST_BARS = 24
SMALL = TIME_NAMES["small"]
DARK = [
    "working",
    "lowered by heat",
    "lowered by power",
    "lowered by another reason",
    "capped",
    "ended",
    "unused",
]
NO_UTILISATION = "The log has no utilisation of a GPU: add utilization.gpu to --query-gpu."


def states(ledger: pd.DataFrame) -> alt.LayerChart:
    """Draw the share of the time that each GPU was in each state, of many GPUs the idlest.

    `ledger`: columns rank, gpu, state, ns, dur_ns, share_frac, as from `monitoring.ledger`.
    """
    need(ledger, "rank", "gpu", "state", "ns", "dur_ns", "share_frac")
    if ledger.empty:
        return nothing("No states of GPUs", NO_UTILISATION)
    rows = _joined(_least_working(ledger))
    state = rows["state"]
    begin, end = ends(rows["share_frac"], rows[["rank", "gpu"]].apply(tuple, axis=1))
    texts = {"share": rows["share_frac"].map(percent), "told": _lasted(rows["dur_ns"])}
    drawn = pd.DataFrame(
        {"label": theme.devices(rows), "state": state, "begin": begin, "end": end, **texts}
    )
    colours = {**STATE_COLOURS, SMALL: TIME_COLOURS[SMALL]}
    names = [name for name in colours if name in set(state)]
    shades = alt.Scale(domain=names, range=[colours[name] for name in names])
    tips = hover(("label", "GPU"), "state", "share", ("told", "time"))
    return layered(
        [
            bars(drawn, "state", shades, axis="share of the readings' time", shown=tips),
            figures(drawn, "state", DARK),
        ],
        _title(ledger),
        f"{_counted(ledger)}{_few(ledger)}",
        picture=f"Stacked bar per GPU of {', '.join(names)}",
        size=(WIDTH, alt.Step(34)),
    )


def _joined(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the ledger with states under SMALL_FRAC of the time of all GPUs as one, the last of each GPU."""
    of_all = ledger.groupby("state", observed=True)["ns"].transform("sum") / ledger["ns"].sum()
    state = ledger["state"].astype(object).where(of_all >= SMALL_FRAC, SMALL)
    large = state.ne(SMALL)
    ordered = ledger.assign(state=state, large=large)
    ordered = ordered.sort_values(
        ["rank", "gpu", "large"], ascending=[True, True, False], kind="stable"
    )
    by = ordered.groupby(["rank", "gpu", "state"], sort=False)
    joined = by[["ns", "share_frac"]].sum()
    joined["dur_ns"] = by["dur_ns"].sum(min_count=1)
    return joined.reset_index()


def _lasted(times: pd.Series) -> pd.Series:
    """Return times as text; a single reading has none."""
    return times.astype(object).map(duration, na_action="ignore").fillna("none: one reading")


def _least_working(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of at most MOST_BARS GPUs, in the order of GPUs and states."""
    works = ledger["share_frac"].where(ledger["state"].astype(str).eq("working"), 0)
    share = works.groupby([ledger["rank"], ledger["gpu"]]).sum()
    chosen = share.sort_values(kind="stable").index[:MOST_BARS]
    is_chosen = pd.MultiIndex.from_frame(ledger[["rank", "gpu"]]).isin(chosen)
    return ledger[is_chosen].sort_values(["rank", "gpu", "state"], ignore_index=True)


def _counted(ledger: pd.DataFrame) -> str:
    """Return for how long a reading counts; nothing where each GPU has a single one."""
    return "Each reading counts until the next one." if ledger["dur_ns"].notna().any() else ""


def _few(ledger: pd.DataFrame) -> str:
    count = len(ledger[["rank", "gpu"]].drop_duplicates())
    return f" The {MOST_BARS} of {count:,} GPUs that work least." if count > MOST_BARS else ""


def _title(ledger: pd.DataFrame) -> str:
    """Return how much of the GPUs' time is work, and the state that takes most of the rest."""
    by_state = ledger.groupby("state", observed=True)["ns"].sum() / ledger["ns"].sum()
    works = percent(float(by_state.get("working", 0.0)))
    rest = by_state.drop("working", errors="ignore")
    if rest.empty:
        return f"GPUs work {works} of the time"
    return f"GPUs work {works} of the time; {rest.idxmax()} {percent(float(rest.max()))}"
