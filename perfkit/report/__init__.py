"""The report: notebooks run without a person, and one page made of them."""

from perfkit import charts as charts  # first: it imports jsonschema for nbformat, fast
from perfkit.report.blocks import (
    about,
    comparison_table,
    decisions,
    figure_table,
    findings,
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
from perfkit.report.links import next_steps
from perfkit.report.notebooks import record
from perfkit.report.pages import build

__all__ = [
    "about",
    "against_promised",
    "against_published",
    "build",
    "comparison_table",
    "decisions",
    "figure_table",
    "findings",
]
__all__ += [
    "first_screen",
    "first_steps",
    "gains",
    "kernel_names",
    "key_findings",
    "name",
    "next_steps",
    "note",
]
__all__ += [
    "bounds",
    "claims",
    "promise",
    "questions",
    "recommendations",
    "record",
    "remarks",
    "sentences",
    "summary",
]
