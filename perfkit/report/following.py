"""What the notebooks say of a choice, one call each, so that it can follow an explorer (`widgets.after`)."""

from fnmatch import fnmatch

from perfkit import charts, diagnosis
from perfkit.format import Shown
from perfkit.report import blocks, links
from perfkit.selection import Selection

BASELINE = "baseline_*"  # ids of the figures that a person keeps
KEPT = ["figure", "value", "definition"]
MOST_ROWS = 60


def findings(view: Selection, *, peaks: str = "") -> Shown:
    """Return the findings on a choice: what costs time, and what speaks for and against it."""
    whole = view.whole
    found = diagnosis.findings(whole, peaks=peaks)
    return blocks.key_findings(found, diagnosis.figures(whole, peaks=peaks))


def decisions(view: Selection, *, of: str, peaks: str = "") -> Shown:
    """Return the decision table of the rules that need one of the tables `of`, such as "KERNELS|COPIES"."""
    whole = view.whole
    figures = diagnosis.figures(whole, peaks=peaks)
    found = diagnosis.findings(whole, peaks=peaks)
    table = blocks.decisions(figures, found, *of.split("|"))
    return charts.tables.show(table, rows=MOST_ROWS, caption="Decisions")


def figures(view: Selection, *, group: str, caption: str, peaks: str = "") -> Shown:
    """Return the figures of a group, which the metadata of a cell lists, with how each was made."""
    known = diagnosis.figures(view.whole, peaks=peaks)
    return charts.tables.show(blocks.figure_table(known, group=group), caption=caption)


def baseline(view: Selection, *, peaks: str = "") -> Shown:
    """Return the figures to measure again after each change."""
    known = diagnosis.figures(view.whole, peaks=peaks)
    kept = {name: figure for name, figure in known.items() if fnmatch(name, BASELINE)}
    table = blocks.figure_table(kept)
    return charts.tables.show(table, columns=KEPT, rows=MOST_ROWS, caption="The baseline")


def next_steps(view: Selection, *, here: str, peaks: str = "") -> Shown:
    """Return links to the notebooks that go on where the findings of the notebook `here` leave off."""
    whole = view.whole
    return links.next_steps(diagnosis.findings(whole, peaks=peaks), whole, here)
