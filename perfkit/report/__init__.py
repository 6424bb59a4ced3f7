"""The report: notebooks run without a person, and one page made of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfkit import charts as charts  # first: it imports jsonschema for nbformat, fast

if TYPE_CHECKING:
    from perfkit.report.blocks import (
        about,
        comparison_table,
        figure_table,
        first_screen,
        first_steps,
        gains,
        kernel_names,
        key_findings,
        name,
        note,
        sentences,
    )
    from perfkit.report.comparison import against_promised, against_published
    from perfkit.report.first_page import (
        bounds,
        claims,
        promise,
        questions,
        recommendations,
        remarks,
        summary,
    )
    from perfkit.report.following import baseline, decisions, figures, findings, next_steps
    from perfkit.report.making import build
    from perfkit.report.notebooks import record

__all__ = [
    "about",
    "against_promised",
    "against_published",
    "baseline",
    "bounds",
    "build",
    "claims",
    "comparison_table",
    "decisions",
    "figure_table",
    "figures",
    "findings",
    "first_screen",
    "first_steps",
    "gains",
    "kernel_names",
    "key_findings",
    "name",
    "next_steps",
    "note",
    "promise",
    "questions",
    "recommendations",
    "record",
    "remarks",
    "sentences",
    "summary",
]
_ELSEWHERE = {
    "against_promised": "comparison",
    "against_published": "comparison",
    **dict.fromkeys(
        ("bounds", "claims", "promise", "questions", "recommendations", "remarks", "summary"),
        "first_page",
    ),
    "build": "making",
    **dict.fromkeys(
        ("baseline", "decisions", "figures", "findings", "next_steps"),
        "following",
    ),
    "record": "notebooks",
}  # by the name of a function its module; "blocks" if it is not here


def __getattr__(name: str) -> Any:
    """Import a function when it is first asked for: the process that makes a report needs few."""
    if name not in __all__:
        raise AttributeError(f"module 'perfkit.report' has no attribute {name!r}")
    module = import_module(f"perfkit.report.{_ELSEWHERE.get(name, 'blocks')}")
    return globals().setdefault(name, getattr(module, name))
