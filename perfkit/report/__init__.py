"""The report: notebooks run without a person, and one page made of them."""

from perfkit.report.build import build
from perfkit.report.promised import against_promised
from perfkit.report.published import against_published
from perfkit.report.record import record
from perfkit.report.shown import (
    about,
    comparison_table,
    figure_table,
    key_findings,
    metrics,
    name,
    note,
    opportunities,
    recommendations,
    refusals,
    sentences,
)

__all__ = [
    "about",
    "against_promised",
    "against_published",
    "build",
    "comparison_table",
    "figure_table",
    "key_findings",
    "metrics",
    "name",
    "note",
    "opportunities",
    "recommendations",
    "record",
    "refusals",
    "sentences",
]
