"""The rules: what each finding asks, needs, rests on and advises, as data in `rules.toml`.

A module of a theme finds what a run shows and calls `tell` with it: title, severity, text, figures and gain. All that
does not depend on the run is in the rule. `confidence` adds what speaks against the finding, and `evidence` leaves out
the advice that the run disproves.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfkit.diagnosis.finding import HORIZONS, Figure, Finding, Gain

FILE = Path(__file__).with_name("rules.toml")


@dataclass(frozen=True)
class Step:
    """Something to do, within days (immediate), weeks to months (medium-term) or quarters (long-term).

    Facts of `perfkit.diagnosis.evidence`: it makes sense `only` where all of these hold, `unless` one of those does.
    """

    horizon: str
    text: str
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One finding; `rules.toml` says what each field means."""

    name: str
    question: str
    needs: tuple[str, ...]
    evidence: tuple[str, ...]
    target: str
    threshold: str
    advice: tuple[Step, ...]
    next: str
    against: tuple[str, ...] = ()
    indirect: str = ""
    change: str = ""
    reason: str = ""
    title: str = ""
    label: str = ""
    unit: str = ""
    definition: str = ""


@cache
def _tables() -> Mapping[str, Any]:
    with FILE.open("rb") as file:
        return tomllib.load(file)


@cache
def rules() -> Mapping[str, Rule]:
    """Return all rules by name, in the order of the file."""
    tables, others = _tables(), ("advice", "code", "inside", "slow")
    return {name: _rule(name, table, tables["advice"]) for name, table in tables.items() if name not in others}


def _rule(name: str, table: dict[str, Any], packs: dict[str, Any]) -> Rule:
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
    pack = packs[table["advice"]]
    steps = tuple(_step(horizon, step) for horizon in HORIZONS for step in pack.get(horizon, ()))
    return Rule(**{**fields, "name": name, "advice": steps})


def _step(horizon: str, step: str | dict[str, Any]) -> Step:
    if isinstance(step, str):
        return Step(horizon, step)
    return Step(horizon, step["step"], tuple(step.get("unless", ())), tuple(step.get("only", ())))


@cache
def words(table: str) -> Any:
    """Return one of the tables of `words.toml`."""
    with FILE.with_name("words.toml").open("rb") as file:
        return tomllib.load(file)[table]


@cache
def snippets() -> Mapping[str, str]:
    """Return the code that shows how a step is done, by the text of the step."""
    tables = _tables()
    steps = [s for pack in tables["advice"].values() for steps in pack.values() for s in steps if isinstance(s, dict)]
    return {step["step"]: tables["code"][step["code"]].strip() for step in steps if "code" in step}


def named(kind: str) -> Mapping[str, Mapping[str, str]]:
    """Return what names tell, by a key: "slow" kernels, or code that the CPU is "inside"; with pattern and remedy."""
    return dict(_tables()[kind])


def tell(
    rule: str,
    title: str,
    severity: str,
    text: str,
    evidence: tuple[Figure, ...],
    gain: Gain,
    *,
    first: str = "",
    place: str = "",
) -> Finding:
    """Return the finding of a rule, without advice but for a `first` step that only its evidence can name.

    `place`: where in the program, such as a range or a kernel, where that is known.

    KeyError for a rule that is not in the file.
    """
    of = rules()[rule]
    advice: dict[str, tuple[str, ...]] = {HORIZONS[0]: (first,)} if first else {}
    return Finding(rule, title, severity, text, evidence, of.target, gain, advice, threshold=of.threshold, place=place)


def table() -> str:
    """Return the rules as a table in Markdown, as the README shows it."""
    rows = ["| finding | question | tables it needs | told from | doubted where |", "|---|---|---|---|---|"]
    for rule in rules().values():
        doubts = "; ".join(filter(None, (rule.indirect, *(check.replace("_", " ") for check in rule.against))))
        needs = ", ".join(rule.needs).replace("|", " or ")
        rows.append(f"| `{rule.name}` | {rule.question} | {needs} | {rule.threshold} | {doubts} |")
    return "\n".join(rows)
