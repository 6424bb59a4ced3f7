"""Pictures of a series of changes, one at a time.

Conventions
-----------
Frames are those of `perfkit.analysis.compare.ledger`. Each run is compared with the one before it; the last bar leads
from the first run to the last, which were compared directly.

Functions
---------
steps         how each change moved the step time
utilisation   how each change moved the utilisation
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.comparison import VERDICT_COLOURS
from perfkit.charts.data import fraction, inline, known, need
from perfkit.charts.theme import KIND_COLOURS, WIDTH, colours, ink, layered, nothing, register
from perfkit.format import TIME, duration, elided, number, percent, unit

LONGEST_LABEL = 40
WHOLE = "step time"  # what a bar from 0 shows
SHADES = {WHOLE: KIND_COLOURS["idle"], **VERDICT_COLOURS}
REACHED, GAINED, LOST = "reached before", "gained", "lost"
SHARES = {REACHED: KIND_COLOURS["idle"], GAINED: KIND_COLOURS["computation"], LOST: KIND_COLOURS["communication"]}


def steps(ledger: pd.DataFrame, *, of: str = WHOLE, title: str = "") -> alt.LayerChart:
    """Draw the step time of the first and last run as bars from 0, and of each between them what it changed.

    Parameters
    ----------
    ledger
        Columns label, step_ns, step_low_ns, step_high_ns, change_ns, verdict, cumulative_ratio; runs in their order;
        those without a step time are left out; may be empty.
    of
        What the times are, where they are no step times but, say, times by sample.
    title
        What is seen; the change from the first to the last run when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a verdict is unknown or a step time not above 0.
    """
    need(ledger, "label", "step_ns", "step_low_ns", "step_high_ns", "change_ns", "verdict", "cumulative_ratio")
    known(ledger, "verdict", VERDICT_COLOURS)
    runs = ledger[ledger["step_ns"].notna()].reset_index(drop=True)
    if runs.empty:
        return nothing(title or "No step times", "No steady steps were found in any of the runs.")
    if not (runs["step_ns"] > 0).all():
        raise ValueError(f"step_ns: {runs['step_ns'].min()} is not above 0")
    register()
    drawn = _floating(runs)
    return layered(
        _bars(drawn, elided(of, LONGEST_LABEL)),
        title or _whole(runs),
        "Median of the steady steps; thin lines: its interval. Each change is against the run above it.",
        picture=f"Waterfall of the step times of {len(runs)} runs",
        size=(WIDTH - 120, alt.Step(30)),
    )


def _whole(runs: pd.DataFrame) -> str:
    """Say what all changes did together."""
    first, last = float(runs["step_ns"].iloc[0]), float(runs["step_ns"].iloc[-1])
    told = f"from {duration(first)} to {duration(last)}"
    if len(runs) == 1:
        return f"One run, whose steps take {duration(first)}"
    changes = "1 change takes" if len(runs) == 2 else f"{len(runs) - 1} changes take"
    return f"{changes} the step {told}: {number(first / last)} times as fast"


def _floating(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a bar per run from the step time before it to its own, the first from 0, and the last again from 0."""
    before = runs["step_ns"].shift().fillna(0.0)
    drawn = pd.DataFrame(
        {
            "label": _labels(runs["label"]),
            "begin": before,
            "end": runs["step_ns"],
            "low": runs["step_low_ns"],
            "high": runs["step_high_ns"],
            "verdict": runs["verdict"].astype(object).where(runs["verdict"].notna(), WHOLE),
            "words": [_changed(*row) for row in zip(runs["step_ns"], before, strict=True)],
        }
    )
    if len(runs) > 1:
        last = drawn.iloc[[-1]].assign(label="all changes together", begin=0.0, verdict=WHOLE)
        drawn = pd.concat([drawn, last.assign(words=duration(float(last["end"].iloc[0])))], ignore_index=True)
    scale = unit(float(drawn[["begin", "end", "high"]].max().max()), TIME)
    lengths = {column: drawn[column] / scale.size for column in ("begin", "end", "low", "high")}
    right = pd.DataFrame(lengths)[["begin", "end", "high"]].max(axis=1)
    return drawn.assign(**lengths, told=drawn["end"].map(duration), right=right, symbol=scale.symbol)


def _changed(step: float, before: float) -> str:
    """Return a step time and by how much it differs from the one before."""
    if not before:
        return duration(step)
    gap = step / before - 1
    return f"{duration(step)} ({'+' if gap > 0 else '-' if gap < 0 else '±'}{percent(abs(gap))})"


def _labels(labels: pd.Series) -> list[str]:
    """Return labels of one line, numbered in the order of the changes."""
    return [
        f"{i}. {elided(label, LONGEST_LABEL)}" if i else elided(label, LONGEST_LABEL) for i, label in enumerate(labels)
    ]


def _bars(drawn: pd.DataFrame, of: str) -> list[alt.Chart]:
    """Return the bars, the intervals of the times, and the figures."""
    drawn = drawn.assign(verdict=drawn["verdict"].replace(WHOLE, of))
    room = alt.Scale(domain=[0, 1.45 * float(drawn["right"].max())], nice=False)
    title = f"{of} ({drawn['symbol'].iloc[0]})"
    place = alt.Y("label:N", title=None, sort=drawn["label"].tolist())
    shade = alt.Color(
        "verdict:N", scale=colours({of: SHADES[WHOLE], **VERDICT_COLOURS}, {}, drawn["verdict"]), title=None
    )
    data = inline(drawn)
    shown = [
        alt.Tooltip("label:N", title="change"),
        alt.Tooltip("told:N", title=of),
        alt.Tooltip("words:N", title="against the run before"),
        alt.Tooltip("verdict:N"),
    ]
    rows = alt.Chart(data)
    begin, low, right = (alt.X(f"{column}:Q", title=title, scale=room) for column in ("begin", "low", "right"))
    return [
        rows.mark_bar(height=alt.RelativeBandSize(band=0.7)).encode(begin, alt.X2("end"), place, shade, shown),
        rows.mark_rule(color="#404040", tooltip=False).encode(low, alt.X2("high"), place),
        ink(data, dx=6).encode(right, place, alt.Text("words:N")),
    ]


def utilisation(ledger: pd.DataFrame, *, of: str = "GPU utilisation", title: str = "") -> alt.LayerChart:
    """Draw the utilisation after each change, and which part of it the change brought.

    Parameters
    ----------
    ledger
        Columns label and utilisation_frac, 0..1; runs in their order; those without one are left out; may be empty.
    of
        Which of the meanings of utilisation it is.
    title
        What is seen; the first and last utilisation when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a utilisation is not a fraction.
    """
    need(ledger, "label", "utilisation_frac")
    fraction(ledger, "utilisation_frac")
    runs = ledger[ledger["utilisation_frac"].notna()].reset_index(drop=True)
    what = elided(of, LONGEST_LABEL)
    if runs.empty:
        return nothing(title or f"No {what}", "None of the runs names its utilisation.")
    register()
    drawn = _shares(runs)
    first, last = (percent(runs["utilisation_frac"].iloc[at]) for at in (0, -1))
    return layered(
        _stacks(drawn, what),
        title or f"{what} goes from {first} to {last} in {len(runs) - 1} changes",
        "Each change is against the run above it, in percentage points.",
        picture=f"Stacked bars of {len(runs)} runs: what was reached before, and what each change gained or lost",
        size=(WIDTH - 120, alt.Step(30)),
    )


def _shares(runs: pd.DataFrame) -> pd.DataFrame:
    """Return what was reached before each change, and what it gained or lost, end to end."""
    share, before = runs["utilisation_frac"], runs["utilisation_frac"].shift().fillna(runs["utilisation_frac"])
    told = [_points(*pair) for pair in zip(share, before, strict=True)]
    reached = pd.DataFrame(
        {"label": _labels(runs["label"]), "begin": 0.0, "end": pd.concat([share, before], axis=1).min(axis=1)}
    )
    moved = reached.assign(begin=reached["end"], end=pd.concat([share, before], axis=1).max(axis=1))
    moved = moved.assign(part=[GAINED if up else LOST for up in share >= before], words=told)
    parts = pd.concat([reached.assign(part=REACHED, words=""), moved], ignore_index=True)
    return parts.assign(told=parts["label"].map(dict(zip(reached["label"], share.map(percent), strict=True))))


def _points(share: float, before: float) -> str:
    """Return a share and by how many points it differs from the one before."""
    gap = 100 * (share - before)
    return percent(share) if not gap else f"{percent(share)} ({'+' if gap > 0 else '-'}{number(abs(gap))} points)"


def _stacks(drawn: pd.DataFrame, what: str) -> list[alt.Chart]:
    """Return the bars and their figures."""
    scale = alt.Scale(domain=[0, 1.3], nice=False)
    axis = alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1])
    begin, end = (alt.X(f"{side}:Q", title=f"{what} (%)", scale=scale, axis=axis) for side in ("begin", "end"))
    place = alt.Y("label:N", title=None, sort=drawn["label"].drop_duplicates().tolist())
    shade = alt.Color("part:N", scale=colours(SHARES, {}, drawn["part"]), title=None)
    data = inline(drawn)
    shown = [alt.Tooltip("label:N", title="change"), alt.Tooltip("part:N"), alt.Tooltip("told:N", title="utilisation")]
    bars = (
        alt.Chart(data)
        .mark_bar(height=alt.RelativeBandSize(band=0.7))
        .encode(begin, alt.X2("end"), place, shade, shown)
    )
    return [bars, ink(data, dx=6).encode(end, place, alt.Text("words:N"))]
