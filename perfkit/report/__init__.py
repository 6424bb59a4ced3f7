"""The report: notebooks run without a person, and one page made of them."""

from perfkit.report.blocks import (
    about,
    against_promised,
    against_published,
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
from perfkit.report.notebooks import record
from perfkit.report.pages import build

__all__ = ["about", "against_promised", "against_published", "build", "comparison_table", "figure_table"]
__all__ += ["key_findings", "metrics", "name", "note", "opportunities", "recommendations", "record", "refusals"]
__all__ += ["sentences"]
