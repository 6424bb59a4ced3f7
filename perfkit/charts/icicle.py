"""Picture of where in the program a metric was spent: call paths as an icicle.

A bar is a calling context, as wide as its inclusive value; what it calls lies under it, side by side, the largest
first; what stays empty under a bar is its own. Lines, loops and instructions count in their function, and equal
functions under one caller are one bar. Nothing recurses: stacks may be thousands of levels deep.

A path is a row of a frame: `up` (row of its caller, -1 at a root), `value` (inclusive), `what` (a kind for people),
`context` and `site` (rows of CALLTREE: the largest context that it stands for, and the line that calls that one, -1 if
unknown), `contexts` and `sites` (how many it stands for), `smaller_count` and `smaller_value` (what it calls that is
too small to be seen), `hidden` (rows of CALLTREE that it stands for too).
"""

import re
from collections.abc import Collection
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.charts.checks import need
from perfkit.charts.theme import (
    KIND_COLOURS,
    LABEL_WIDTH,
    WIDTH,
    colours,
    hover,
    inline,
    layered,
    nothing,
)
from perfkit.format import (
    BYTES,
    TIME,
    Unit,
    duration,
    elided,
    number,
    percent,
    printable,
    size,
    unit,
)
from perfkit.names.families import short

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Values = NDArray[np.float64]
PYTHON, NATIVE, OPERATION, KERNEL, OTHER = (
    "Python",
    "native code",
    "GPU operation",
    "kernel",
    "other",
)
PYTHON_MODULE = "<logical python>"  # HPCToolkit's module of Python frames
UNNAMED = "<unknown"  # a function without symbols: HPCToolkit calls it <unknown procedure>
# What stays of a chain of Python frames and of one of native code, mildest first.
STAGES = (
    {NATIVE: "ends"},
    {NATIVE: "last"},
    {NATIVE: "last", PYTHON: "ends"},
    {NATIVE: "last", PYTHON: "last"},
)
SPENT = {  # HPCToolkit's metrics; others are called by their names
    "CPUTIME": "CPU time",
    "REALTIME": "real time",
    "CYCLES": "CPU cycles",
    "GPUOP": "GPU time",
    "GKER": "kernel time",
    "GXCOPY": "copy time",
    "GINS": "GPU instructions",
    "GCYCLES": "GPU cycles",
}
THREADS = ("CPUTIME", "REALTIME", "CYCLES")  # they pass in many threads at once
LONGEST_NAME, LONGEST_PLACE, LONGEST_LABEL, LONGEST_TITLE = 300, 120, 90, 64  # characters
LIBRARY = re.compile(r" \[[^\]]*\]$")  # HPCToolkit writes it behind the name of a function
SCOPES = re.compile(r"^(?:\w+::)+(?=\w+::)")  # all but the last two names
COUNTS = (Unit("", 1), Unit("thousand", 1e3), Unit("million", 1e6), Unit("billion", 1e9))
COLOURS = {
    PYTHON: "#E9B62F",
    NATIVE: "#9CB0CE",
    OPERATION: KIND_COLOURS["copy"],
    KERNEL: "#4A93E6",
    OTHER: "#C8C8C8",
}
OWNED = {
    "range": "range",
    "operator": "operator",
    "module": "module",
    "line": "Python function",
    "phase": "phase",
}
# Of call paths, for the owners in their order; a picture shows owners of one kind, below OTHER.
SHARED = (KERNEL, NATIVE, KERNEL, PYTHON, OPERATION)
COLOURS |= {owner: COLOURS[kind] for owner, kind in zip(OWNED.values(), SHARED, strict=True)}
INK = "#101418"  # on the bars, which are light on every page
KINDS = ("function", "loop", "line", "instruction", "gpu_operation")
ROW, NARROWEST_TEXT = 20, 30  # pixels
MOST_BARS = 1_500
NO_PATHS = "No call path holds this metric. Record with `hpcrun -e CPUTIME -e gpu=nvidia`."
# All text that the field is compared with is data; the expressions themselves hold none of it.
_MATCHES = "!search || indexof(lower(datum.name + ' ' + datum.hidden), lower(search)) >= 0"
_PIXELS = "width * (min(datum.end, right) - max(datum.begin, left)) / (right - left) - 6"
_WORDS: dict[str, Any] = {
    "align": "left",
    "clip": True,
    "color": INK,
    "fontSize": 11,
    "tooltip": False,
    "dx": alt.ExprRef("4 + width * max(0, left - datum.begin) / (right - left)"),
    "limit": alt.ExprRef(f"max(1, {_PIXELS})"),
    "opacity": alt.ExprRef(f"{_PIXELS} < {NARROWEST_TEXT} ? 0 : 1"),
}


def tree(
    calltree: pd.DataFrame,
    call_metrics: pd.DataFrame,
    *,
    metric: str = "",
    depth: int = 24,
    at_least_frac: float = 0.002,
    fold: Collection[str] = ("line", "loop", "instruction"),
    title: str = "",
) -> alt.LayerChart:
    """Draw the call paths that a metric was spent on.

    A click on a bar spreads it over the whole width, one beside the bars or a double click brings all back. The field
    under the picture finds names: all bars without the text turn grey.
    `metric`: one of CALL_METRICS; when empty the time with the largest sum, without one the first metric.
    `depth`: most rows, at least 2. Of a deeper tree the middle functions of chains are left out, then what lies below.
    `at_least_frac`: 0 to 1: narrower contexts under one caller become one grey bar. `fold`: kinds of context that count
    in what encloses them, as in CALLTREE. Raises ValueError if contexts hold more than their caller.
    """
    need(calltree, "rank", "node", "parent", "entry", "kind", "name", "file", "line", "module")
    need(call_metrics, "rank", "node", "metric", "unit", "inclusive")
    if depth < 2:
        raise ValueError(f"depth: {depth} is not at least 2")
    if not 0 < at_least_frac < 1:
        raise ValueError(f"at_least_frac: {at_least_frac} is not between 0 and 1")
    if isinstance(fold, str) or not set(fold) <= set(KINDS):
        raise ValueError(f"fold: {fold!r} is not a collection of {list(KINDS)}")
    if calltree.empty or not (call_metrics["inclusive"] > 0).any():
        return nothing(title or "No call paths", NO_PATHS)
    metric, symbol = _metric(calltree, call_metrics, metric)
    rows = call_metrics.loc[call_metrics["metric"] == metric, ["rank", "node", "inclusive"]]
    measured = calltree[["rank", "node"]].merge(rows, how="left", on=["rank", "node"])
    value = measured["inclusive"].fillna(0).to_numpy(float)
    total = float(value[calltree["parent"].isna()].sum())
    if not total > 0:
        return nothing(title or f"No call paths with {spent(metric)}", NO_PATHS)
    bars, below = _bars(calltree, value, depth, at_least_frac * total, fold)
    scale, drawn = unit_of(total, symbol), labels_of(bars, calltree, total, symbol)
    axis = f"{spent(metric)}{', summed over threads' * (metric in THREADS)} ({scale.symbol})"
    cut = f" {below} rows below are not drawn." if below else ""
    return layered(
        _layers(drawn, total / scale.size, axis),
        title or title_of(bars, drawn, metric, total),
        f"{amount(total, symbol)} in all, each bar with what it calls. Click: wider; double click: back.{cut}",
        picture=f"Icicle of {len(drawn)} calling contexts, callers above what they call",
        size=(WIDTH + LABEL_WIDTH, int(drawn["row"].max() + 1) * ROW),
    )


def owners(paths: pd.DataFrame, *, by: str = "range", depth: int = 16) -> alt.LayerChart:
    """Draw who owns the GPU's time: paths of ranges, operators, modules, lines or phases above what lies in them.

    Time that a bar owns itself stays empty below it. `paths`: columns rank, node, parent (-1 at the top), name (missing
    for time without an owner), inclusive_ns. `by`: what the paths are of. `depth` as in `tree`.
    """
    need(paths, "rank", "node", "parent", "name", "inclusive_ns")
    if by not in OWNED:
        raise ValueError(f"by: {by!r} is not one of {list(OWNED)}")
    ranks = np.unique(paths["rank"].to_numpy())
    top = pd.DataFrame(
        {"rank": ranks, "node": paths["node"].max() + 1, "parent": pd.NA, "name": "all kernels"}
    )
    top["inclusive_ns"] = (
        paths["inclusive_ns"].where(paths["parent"] < 0, 0).groupby(paths["rank"]).sum().to_numpy()
    )
    name = paths["name"].astype("string").fillna(f"no {OWNED[by]}")
    under = paths["parent"].where(paths["parent"] >= 0, paths["node"].max() + 1)
    rows = pd.concat([paths.assign(name=name, parent=under), top], ignore_index=True).astype(
        {"parent": "Int64"}
    )
    nowhere: dict[str, Any] = {
        "file": pd.NA,
        "line": pd.array([pd.NA] * len(rows), "Int64"),
        "module": pd.NA,
    }
    kind = np.where(rows["parent"].isna(), "entry", OWNED[by])
    calltree = rows[["rank", "node", "parent", "name"]].assign(
        entry="all kernels", kind=kind, **nowhere
    )
    metrics = rows[["rank", "node"]].assign(
        metric="GKER", unit="s", inclusive=rows["inclusive_ns"] / 1e9
    )
    return tree(calltree, metrics, depth=depth, fold=())


def _metric(calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str) -> tuple[str, str]:
    """Return the metric to draw and its unit: as asked, else the time with the largest sum, else the first."""
    roots = calltree.loc[calltree["parent"].isna(), ["rank", "node"]]
    sums = call_metrics.merge(roots, on=["rank", "node"]).assign(
        metric=lambda rows: rows["metric"].astype(str)
    )
    sums = sums.groupby(["metric", sums["unit"].astype(str)])["inclusive"].sum().reset_index()
    if metric and metric not in (legal := sorted(sums["metric"])):
        raise ValueError(f"metric: {metric!r} is not one of {legal}")
    asked = sums[sums["metric"] == metric] if metric else sums
    first = (
        asked.assign(time=asked["unit"].eq("s"))
        .sort_values(["time", "inclusive"], ascending=False)
        .iloc[0]
    )
    return str(first["metric"]), str(first["unit"])


def _bars(
    calltree: pd.DataFrame, value: Values, depth: int, least: float, fold: Collection[str]
) -> tuple[pd.DataFrame, int]:
    """Return the bars that fit into `depth` rows, and how many rows lie below; of too many bars the widest."""
    while True:
        paths = shortened(folded(calltree, value, fold, least), calltree, depth, least)
        bars = placed(paths, least, depth)
        if len(bars) <= MOST_BARS or least > value.max():
            return bars, max(levels(paths) - depth, 0)
        least *= 2


def _layers(drawn: pd.DataFrame, total: float, axis: str) -> list[alt.Chart]:
    """Return grey bars, the bars that match the search in colour above them, and names as far as they fit."""
    span = alt.Scale(
        domainMin=alt.ExprRef("left"), domainMax=alt.ExprRef("right"), nice=False, zero=False
    )
    x = alt.X("begin:Q", title=axis, scale=span, axis=alt.Axis(grid=False))
    y = alt.Y("row:O", axis=None, scale=alt.Scale(paddingInner=0.06, paddingOuter=0))
    rows, places = alt.Chart(inline(drawn)), (x, alt.X2("end"), y)
    colour = alt.Color("kind:N", scale=colours(COLOURS, {}, drawn["kind"]), title=None)
    shown = hover(
        "name",
        ("value", "with what it calls"),
        ("share", "share of the whole"),
        "kind",
        ("called", "called from"),
        ("place", "defined in"),
        ("hidden", "also stands for"),
    )
    coloured = rows.mark_rect(
        clip=True, x2Offset=-1, cursor="pointer", fillOpacity=alt.ExprRef(f"{_MATCHES} ? 1 : 0")
    )
    # The bar that was clicked, the ends of the axis that follow from it, and the text searched for.
    field = alt.binding(
        input="text", name="find ", placeholder="part of a name", autocomplete="off"
    )
    params = [
        alt.selection_point(
            name="clicked", fields=["begin", "end"], toggle=False, clear="dblclick"
        ),
        alt.param(name="left", expr="clicked.begin ? clicked.begin[0] : 0"),
        alt.param(name="right", expr=f"clicked.end ? clicked.end[0] : {total!r}"),
        alt.param(name="search", value="", bind=field),
    ]
    return [
        rows.mark_rect(color=COLOURS[OTHER], clip=True, x2Offset=-1, tooltip=False).encode(*places),
        coloured.encode(*places, colour, shown).add_params(*params),
        rows.mark_text(**_WORDS).encode(x, y, alt.Text("label:N")),
    ]


def spent(metric: str) -> str:
    """Return the metric for people."""
    return SPENT.get(metric, printable(metric, LONGEST_TITLE))


def unit_of(total: float, symbol: str) -> Unit:
    """Return the unit of the axis, and how much of the metric's own unit `symbol` it holds."""
    if symbol == "s":
        step = unit(1e9 * total, TIME)
        return Unit(step.symbol, step.size / 1e9)
    if symbol == "bytes":
        return unit(total, BYTES)
    step = unit(total, COUNTS)
    return Unit(f"{step.symbol} {symbol}".strip(), step.size)


def amount(value: float, symbol: str) -> str:
    """Return a value, given in the metric's own unit `symbol`, as people read it."""
    if symbol in ("s", "bytes"):
        return duration(1e9 * value) if symbol == "s" else size(value)
    step = unit_of(value, symbol)
    return f"{number(value / step.size)} {step.symbol}"


def labels_of(
    bars: pd.DataFrame, calltree: pd.DataFrame, total: float, symbol: str
) -> pd.DataFrame:
    """Return the place of each bar in the unit of the axis, what it is called, and what its tooltip says."""
    size = unit_of(total, symbol).size
    context = calltree.iloc[bars["context"].clip(lower=0)]
    several = len(calltree["rank"].unique()) > 1
    parts = (
        context["name"].astype(str),
        context["kind"],
        context["rank"],
        bars["context"],
        bars["contexts"],
    )
    name = [
        f"{count} smaller"
        if row < 0
        else f"rank {rank} · {own}"
        if several and kind == "entry"
        else own
        for own, kind, rank, row, count in zip(*parts, strict=True)
    ]
    hidden = [
        ", ".join(_label(calltree["name"].iloc[row], "function") for row in rows)
        for rows in bars["hidden"]
    ]
    label = [_label(text, kind) for text, kind in zip(name, context["kind"], strict=True)]
    lines = (
        calltree["name"].iloc[bars["site"].clip(lower=0)].astype(str)
    )  # that call each bar's largest context
    place = context["file"].astype("string") + (":" + context["line"].astype("string")).where(
        context["line"].gt(0), ""
    )
    columns = {
        "row": bars["row"],
        "begin": (bars["begin"] / size).round(6),
        "end": (bars["end"] / size).round(6),
        "label": [f"… {own}" if others else own for own, others in zip(label, hidden, strict=True)],
        "name": [elided(text, LONGEST_NAME) for text in name],
        "kind": bars["what"],
        "value": [amount(value, symbol) for value in bars["value"]],
        "share": (bars["value"] / total).map(percent),
        "called": [
            "" if row < 0 else printable(line, LONGEST_PLACE) + " and other lines" * (count > 1)
            for line, row, count in zip(lines, bars["site"], bars["sites"], strict=True)
        ],
        "place": [
            elided(text, LONGEST_PLACE)
            for text in place.where(bars["context"].ge(0).to_numpy()).fillna("")
        ],
        "hidden": [elided(text, LONGEST_NAME) for text in hidden],
    }
    return pd.DataFrame(columns)


def _label(name: str, kind: str) -> str:
    """Return the name for people: of a function without its library, outer scopes and parameters."""
    if kind != "function" or name.startswith("<"):
        return printable(name, LONGEST_LABEL)
    return printable(SCOPES.sub("", short(LIBRARY.sub("", name))), LONGEST_LABEL)


def title_of(bars: pd.DataFrame, drawn: pd.DataFrame, metric: str, total: float) -> str:
    """Name the bar with the largest value of its own, and the closest line of Python that led to it."""
    own, up = bars["own"].where(bars["context"] >= 0).to_numpy(float), bars["up"].to_numpy()
    label, called = drawn["label"].tolist(), drawn["called"].tolist()
    largest = at = int(np.nanargmax(own))
    of = f"the {spent(metric)}" if metric in SPENT else spent(metric)
    title = f"{elided(label[largest], LONGEST_TITLE)} takes {percent(own[largest] / total)} of {of}"
    while at >= 0 and not re.search(r"\.py:\d", called[at]):
        at = int(up[at])
    return title if at < 0 else f"{title}, called from {printable(called[at], LONGEST_TITLE)}"


def folded(
    calltree: pd.DataFrame, value: Values, folding: Collection[str], least: float
) -> pd.DataFrame:
    """Return the paths of at least `least`; equal names under one caller are one, `folding` kinds none."""
    parent, kind = (
        calltree["parent"].to_numpy(np.int64, na_value=-1),
        calltree["kind"].astype(str).to_numpy(),
    )
    ranks = calltree["rank"].to_numpy(np.int64) * (int(calltree["node"].max()) + 1)
    rows = pd.Index(ranks + calltree["node"].to_numpy()).get_indexer(pd.Index(ranks + parent))
    up: Rows = np.where(parent < 0, -1, rows).astype(np.int64)
    called = _called(up, value)
    wrong = np.flatnonzero(called > value + 1e-9 * value.max(initial=0))
    if len(wrong):
        node, more, less = calltree["node"].iloc[wrong[0]], called[wrong[0]], value[wrong[0]]
        raise ValueError(
            f"call_metrics: what node {node} calls holds {more:g}, more than its own {less:g}"
        )
    script = (kind == "line") & (up >= 0) & (kind[up] == "entry")
    folds = np.isin(kind, list(folding)) & (up >= 0) & ~script
    numbered = (kind == "line") & calltree["line"].gt(0).fillna(False).to_numpy(bool)
    site = _above(up, ~folds | (kind == "line"))
    python = calltree["module"].eq(PYTHON_MODULE).fillna(False).to_numpy(bool)
    script = calltree["file"].astype("string").str.endswith(".py").fillna(False).to_numpy(bool)
    operation = kind == "gpu_operation"
    owned = np.isin(kind, list(OWNED.values()))
    rules = [
        owned,
        _above(up, operation) >= 0,
        operation,
        python | (script & (kind != "function")),
        kind != "entry",
    ]
    kinds: NDArray[np.object_] = np.select(
        rules, [kind, KERNEL, OPERATION, PYTHON, NATIVE], OTHER
    ).astype(object)
    columns = {
        "up": up,
        "value": value,
        "what": kinds,
        "context": np.arange(len(up)),
        "site": np.where((site >= 0) & numbered[site], site, -1),
    }
    paths = pd.DataFrame(columns)
    return _seen(_merged(_without(paths, folds | ~(value > 0)), calltree), least)


def _above(up: Rows, wanted: Mask) -> Rows:
    """Return the row of the closest caller of each row that is `wanted`, -1 without one; by doubling the stride."""
    last = len(up)
    caller = np.where(up < 0, last, up)
    at = np.append(np.where(wanted, np.arange(last), caller), last)
    while not np.array_equal(at, at[at]):
        at = at[at]
    return np.where(at[caller] == last, -1, at[caller])


def _along(up: Rows, amount: Values) -> Values:
    """Return the sum of `amount` from the root down to each row; by doubling the stride."""
    total, at = amount.copy(), up.copy()
    while (on := np.flatnonzero(at >= 0)).size:
        total[on] += total[at[on]]
        at[on] = at[at[on]]
    return total


def _without(paths: pd.DataFrame, gone: Mask) -> pd.DataFrame:
    """Return the other paths; the closest caller that stays calls what removed paths called."""
    caller = _above(paths["up"].to_numpy(), ~gone)
    number = np.cumsum(~gone) - 1
    return paths.assign(up=np.where(caller < 0, -1, number[caller]))[~gone].reset_index(drop=True)


def _merged(paths: pd.DataFrame, calltree: pd.DataFrame) -> pd.DataFrame:
    """Return one path for those with equal names, modules and kinds under one caller, level by level."""
    up, value = paths["up"].to_numpy(), paths["value"].to_numpy()
    named = (
        calltree[["name", "module", "rank"]]
        .iloc[paths["context"]]
        .assign(what=paths["what"].to_numpy())
    )
    same = (
        named.groupby(list(named), sort=False, dropna=False, observed=True)
        .ngroup()
        .to_numpy(np.int64)
    )
    level = _level(up)
    group = np.full(len(up) + 1, -1)  # the last stands for the caller of a root
    order = np.argsort(level, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(level[order])) + 1):
        keys = group[up[rows]] * (len(up) + 1) + same[rows]
        group[rows] = pd.factorize(keys)[0] + group.max() + 1
    group = group[:-1]
    largest = np.lexsort([-value, group])
    first = largest[np.unique(group[largest], return_index=True)[1]]
    caller = np.where(up[first] < 0, -1, group[up[first]])
    sites = paths["site"].groupby(group).nunique().to_numpy()
    counts = {"value": np.bincount(group, value), "contexts": np.bincount(group), "sites": sites}
    return paths.iloc[first].assign(up=caller, **counts).reset_index(drop=True)


def _seen(paths: pd.DataFrame, least: float) -> pd.DataFrame:
    """Return the roots and the paths of at least `least`; the others are counted at their caller."""
    up, value = paths["up"].to_numpy(), paths["value"].to_numpy()
    small = (value < least) & (up >= 0)
    edge = small & ~small[up]
    count = np.bincount(up[edge], minlength=len(up))
    lost = np.bincount(up[edge], value[edge], minlength=len(up))
    hidden = pd.Series([()] * len(up), dtype=object)
    return _without(paths.assign(smaller_count=count, smaller_value=lost, hidden=hidden), small)


def shortened(paths: pd.DataFrame, calltree: pd.DataFrame, rows: int, least: float) -> pd.DataFrame:
    """Return paths in at most `rows` rows, if leaving out members of chains can do it: native code first."""
    # The first member of the chain that each path belongs to, which may be itself.
    up, value, what = paths["up"].to_numpy(), paths["value"].to_numpy(), paths["what"].to_numpy()
    only = (up >= 0) & (np.bincount(up[up >= 0], minlength=len(up))[up] == 1)
    linked = only & (what[up] == what) & np.isin(what, [PYTHON, NATIVE])
    chain = np.arange(len(up))
    for row in np.argsort(_level(up), kind="stable"):
        if linked[row] and value[chain[up[row]]] - value[row] < least:
            chain[row] = chain[up[row]]
    context = calltree.iloc[paths["context"]]
    # The last function of each chain that has a name, or the last path if none has.
    named = (
        context["kind"].eq("function") & ~context["name"].astype(str).str.startswith(UNNAMED)
    ).to_numpy()
    order = np.lexsort([_level(paths["up"].to_numpy()), named, chain])
    last = np.zeros(len(chain), bool)
    last[order[np.append(np.diff(chain[order]) != 0, True)]] = True
    ends = {"ends": (chain == np.arange(len(chain))) | last, "last": last}
    shorter = paths
    for stage in STAGES:
        if levels(shorter) <= rows:
            break
        gone = np.any(
            [paths["what"].eq(what) & ~ends[stays] for what, stays in stage.items()], axis=0
        )
        shorter = _without(_noted(paths, chain, last, gone), gone)
    return shorter


def levels(paths: pd.DataFrame) -> int:
    """Return the number of rows that the paths fill."""
    return int(_level(paths["up"].to_numpy()).max(initial=-1)) + 1


def _level(up: Rows) -> Rows:
    return _along(up, np.ones(len(up))).astype(np.int64) - 1


def _noted(paths: pd.DataFrame, chain: Rows, last: Mask, gone: Mask) -> pd.DataFrame:
    """Return the paths; what is gone is noted at the last of its chain, what is too small there at the next caller."""
    hidden: dict[int, list[int]] = {}
    for row in np.argsort(_level(paths["up"].to_numpy()), kind="stable"):
        if gone[row]:
            hidden.setdefault(int(chain[row]), []).append(int(paths["context"].iloc[row]))
    hidden_at = [
        tuple(hidden.get(first, ())) if stays else ()
        for first, stays in zip(chain, last, strict=True)
    ]
    at = np.where(gone, _above(paths["up"].to_numpy(), ~gone), np.arange(len(gone)))
    smaller = {
        column: np.bincount(at, paths[column], len(at))
        for column in ("smaller_count", "smaller_value")
    }
    return paths.assign(hidden=pd.Series(hidden_at, dtype=object), **smaller)


def placed(paths: pd.DataFrame, least: float, rows: int) -> pd.DataFrame:
    """Return one bar per path in `rows`, largest first from its caller's `begin`, and one for its smaller callees."""
    together = paths[paths["smaller_value"] >= least]
    columns = {
        "up": together.index,
        "value": together["smaller_value"],
        "contexts": together["smaller_count"].astype(np.int64),
        "what": OTHER,
        "context": -1,
        "site": -1,
        "sites": 0,
        "hidden": pd.Series([()] * len(together), dtype=object).to_numpy(),
    }
    rest = pd.DataFrame(columns)
    bars = pd.concat(
        [paths.drop(columns=["smaller_count", "smaller_value"]), rest], ignore_index=True
    )
    up, value = bars["up"].to_numpy(), bars["value"].to_numpy()
    order = np.lexsort([-value, bars["context"].to_numpy() < 0, up])
    beside = np.empty(len(bars))
    beside[order] = bars["value"].iloc[order].groupby(up[order]).cumsum().to_numpy() - value[order]
    begin = _along(up, beside)
    bars = bars.assign(begin=begin, end=begin + value, row=_level(up))
    bars = _without(bars, bars["row"].to_numpy() >= rows)
    return bars.assign(own=bars["value"] - _called(bars["up"].to_numpy(), bars["value"].to_numpy()))


def _called(up: Rows, value: Values) -> Values:
    """Return what each row calls, in sum."""
    sums: Values = np.bincount(up[up >= 0], value[up >= 0], minlength=len(up)).astype(float)
    return sums
