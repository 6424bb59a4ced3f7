"""Figures and findings of a log of the GPUs: what step 2 of the analysis checks.

Means are weighted by time, and over GPUs each counts alike. The verdicts are those of `analysis.monitoring.checks`.
"""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from perfkit.analysis import monitoring
from perfkit.diagnosis.finding import Figure, Finding, Gain, severity
from perfkit.diagnosis.rules import tell, words
from perfkit.selection import Selection

KIND = "monitor"
MEANINGS = words("log")
NOTABLE = 0.1  # of the time with a lowered clock, from which on it matters like any other share
TITLES = {
    "utilisation": "{gpu} reached 80 % utilisation for only {share} of the time",
    "memory": "The memory of {gpu} is {share} full",
    "power": "{gpu} draws only {share} of its power limit",
    "throttling": "Power or heat lowered the clock of {gpu} {share} of the time",
    "traffic": "A link of {gpu} carries {share} of its peak",
}
NEVER = {"utilisation": "{gpu} never reached 80 % utilisation"}  # where the share is 0


def figures(view: Selection) -> Iterator[Figure]:
    """Yield the figures of a log of the GPUs; what it does not hold is absent."""
    if not is_logged(view):
        return
    used = monitoring.utilisation(view.samples, window=view.window)
    for column, (label, definition) in MEANINGS.items():
        if used[column].notna().any():
            source = "monitoring.utilisation"
            yield Figure(f"log_{column}", label, float(used[column].mean()), "1", definition, source)
    idle = monitoring.idle(view.samples, window=view.window).dropna(subset=["idle_frac"])
    if len(idle):
        definition = "share of the time with readings of no kernel at all; average over the GPUs"
        value = float(idle["idle_frac"].mean())
        yield Figure("log_idle_frac", "Readings without a kernel (log)", value, "1", definition, "monitoring.idle")
    throttled = monitoring.throttling(view.samples, window=view.window).dropna(subset=["throttled_frac"])
    if len(throttled):
        definition = "share of the time in which power, heat or another reason lowered the clock; average over the GPUs"
        value = float(throttled["throttled_frac"].mean())
        yield Figure("log_throttled_frac", "Clock lowered", value, "1", definition, "monitoring.throttling")
    for row in monitoring.at_limit(view.samples, view.devices, window=view.window).to_dict("records"):
        if pd.notna(row["worst_frac"]) and row["quantity"] in ("power", "memory"):
            place = f"{row['quantity']}_{row['rank']}_{row['gpu']}"
            label = f"Highest {row['quantity']}, GPU {row['gpu']}"
            definition = f"highest reading, as a share of the limit ({row['source']})"
            value = float(row["worst_frac"])
            yield Figure(f"log_{place}_frac", label, value, "1", definition, "monitoring.at_limit")


def findings(view: Selection) -> Iterator[Finding]:
    """Yield one finding per check of step 2 that asks for attention, over all GPUs."""
    if not is_logged(view):
        return
    found = monitoring.checks(view.samples, view.devices, window=view.window)
    for check, rows in found[found["verdict"].astype(str).eq("attention")].groupby("check", observed=True, sort=False):
        worst = rows.iloc[0]
        others = ", ".join(f"GPU {gpu}" for gpu in rows["gpu"].unique()[:8] if gpu != worst["gpu"])
        fraction = worst["unit"] == "frac"
        gpu, reason, value = f"GPU {worst['gpu']}", str(worst["reason"]), float(worst["value"])
        label, unit = f"{str(check).capitalize()} check, {gpu}", "1" if fraction else "bytes/s"
        figure = Figure(f"log_check_{check}", label, value, unit, reason, "monitoring.checks")
        titles = TITLES if figure.value else {**TITLES, **NEVER}
        title = titles[str(check)].format(gpu=gpu, share=figure.text) + (f" (also: {others})" if others else "")
        gain = Gain(1.0, float("inf"), "the log shows the problem, but not its cost: record a timeline")
        target = f"{worst['threshold']:.0%}".replace("%", " %") if fraction and pd.notna(worst["threshold"]) else "none"
        level = severity(figure.value) if check == "throttling" and figure.value >= NOTABLE else "medium"
        yield replace(tell(f"log_{check}", title, level, reason, (figure,), gain), target=target)


def is_logged(view: Selection) -> bool:
    """Say whether the run holds a log of its GPUs."""
    return KIND in view.run.kinds
