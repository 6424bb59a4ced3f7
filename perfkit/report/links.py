"""Numbers as links to the cell that shows them and the tables behind them.

Conventions
-----------
A notebook cannot know where its report will be: it shows a figure as a link to the notebook beside it, which JupyterLab
follows, and marks the names of tables. `resolved` turns both into links of the page or of the executed notebooks, and
into plain text where they would lead nowhere. All that comes from outside is escaped before; a name from a profile
therefore cannot pass for one of these marks.

Classes
-------
Known      what a link knows of its figure

Functions
---------
figure          a figure's text as a link
tables          a figure's source with its tables marked
resolved        HTML with links that lead somewhere
without_files   HTML without the links to files
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape, unescape
from typing import NamedTuple

from perfkit.diagnosis import Figure
from perfkit.format import Shown, printable
from perfkit.report.behind import behind
from perfkit.report.places import href, place, stored
from perfkit.tables import TABLES

QUIET = "color:inherit;text-decoration:underline dotted;text-underline-offset:.2em;white-space:nowrap"
LONGEST = 200  # characters of a text or a source
_FIGURE = re.compile(
    r'<a class="perfkit-figure" data-id="([^"]*)" data-source="([^"]*)" data-label="([^"]*)" href[^>]*>([^<]*)</a>'
)
_FILE = re.compile(r'<a class="perfkit-data" href="[^"]*">([^<]*)</a>')
_TABLE = re.compile(r'<span class="perfkit-data" data-table="([\w/]+)">([^<]*)</span>')

File = Callable[[str], str]


class Known(NamedTuple):
    """What a link knows of its figure: its id, source, label, and the text that is the link."""

    id: str
    source: str
    label: str
    text: str


Target = Callable[[Known], str]


def figure(known: Figure, *, text: str = "") -> Shown:
    """Return a figure's text, or another, as a link to the cell that shows it; plain where none does."""
    cell, told = place(known.id, known.source, stored()), printable(text or known.marked, LONGEST)
    if cell is None:
        return Shown(escape(told), told)
    names = (f'data-{name}="{escape(getattr(known, name))}"' for name in ("id", "source", "label"))
    html = f'<a class="perfkit-figure" {" ".join(names)} href="{href(cell)}" style="{QUIET}">{escape(told)}</a>'
    return Shown(html, told)


def tables(known: Figure) -> Shown:
    """Return a figure's source, the tables it rests on first and marked, then the analysis."""
    names, words = behind(known.id, known.source).tables, known.source.rpartition(";")[2].split(",")
    analysis = printable(", ".join(word.strip() for word in words if word.strip() not in TABLES), LONGEST)
    marked = ", ".join(f'<span class="perfkit-data" data-table="{name}">{called(name)}</span>' for name in names)
    both = (marked, escape(analysis)), (", ".join(map(called, names)), analysis)
    return Shown(*("; ".join(filter(None, pair)) for pair in both))


def called(table: str) -> str:
    """Return what a reader calls a table, which may lie in a folder of its own.

    Examples
    --------
    >>> called("KERNELS"), called("framework/OPS"), called("baseline/KERNELS")
    ('KERNELS', 'OPS', 'KERNELS before')
    """
    folder, _, name = table.rpartition("/")
    return f"{name} before" if folder == "baseline" else name


def without_files(html: str) -> str:
    """Return a page in which tables are named, and no longer links to their files."""
    return _FILE.sub(r"\1", html)


def resolved(html: str, target: Target, file: File) -> str:
    """Return HTML in which figures and tables are links that lead somewhere, or plain text.

    Parameters
    ----------
    html
        What a cell shows.
    target
        From a figure, as far as a link knows it, to the attributes of its link; empty for none.
    file
        From the name of a table to the path of its file; empty for none.

    Examples
    --------
    >>> shown = figure(Figure("idle_frac", "GPU idle", 0.05, "1", "", "KERNELS; timeline.breakdown")).html
    >>> resolved(shown, lambda known: f'href="#{known.id}"', lambda name: "")
    '<a class="perfkit-figure" href="#idle_frac">5.0 %</a>'
    >>> resolved(shown, lambda known: "", lambda name: "")
    '5.0 %'
    """

    def link(found: re.Match[str]) -> str:
        attributes = target(Known(*map(unescape, found.groups())))
        return f'<a class="perfkit-figure" {attributes}>{found[4]}</a>' if attributes else found[4]

    def data(found: re.Match[str]) -> str:
        path = file(found[1])
        return f'<a class="perfkit-data" href="{escape(path)}">{found[2]}</a>' if path else found[2]

    return _TABLE.sub(data, _FIGURE.sub(link, html))
