"""Self-contained HTML pages from executed notebooks.

Styles, the chart library and all data are inside the page, and its content security policy lets a browser load nothing
else and run no script but the ones whose hash it names. The templates escape all but Markdown of perfkit's notebooks
and HTML, which `perfkit.charts.tables` and `perfkit.report.blocks` escape.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.charts import tables as charts_tables
from perfkit.charts import vega
from perfkit.charts.vega import MIME, VEGA_LITE
from perfkit.errors import PerfkitError

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup
    from nbformat import NotebookNode

TEMPLATES = Path(__file__).parent / "template" / "perfkit"


@dataclass(frozen=True)
class _Section:
    """One notebook on the page; `question` is its first heading."""

    anchor: str
    title: str
    question: str
    cells: list[NotebookNode]
    failed: bool
    has_code: bool
    charts: bool
    tables: bool


class Lead(NamedTuple):
    """A page of a report as the others link to it; `question` is its first heading."""

    href: str
    name: str
    question: str
    is_here: bool = False
    failed: bool = False


PADDING = (
    16  # pixels: where the picture is looked at, its letters may be wider than where it was made
)


def page(notebook: NotebookNode, *, title: str, run: str = "", leads: Sequence[Lead] = ()) -> str:
    """Return one executed notebook as a page: HTML.

    `run`: what stands above the links to the other pages of the report, `leads`.
    """
    return _rendered([(title, notebook)], title=title, run=run, leads=leads)


def pages(notebooks: Sequence[tuple[str, NotebookNode]], *, title: str) -> str:
    """Return executed notebooks, by the titles of their sections, as one HTML page under a table of contents."""
    return _rendered(notebooks, title=title)


def _rendered(
    notebooks: Sequence[tuple[str, NotebookNode]],
    *,
    title: str,
    run: str = "",
    leads: Sequence[Lead] = (),
) -> str:
    from markupsafe import Markup

    if not notebooks:
        raise ValueError("notebooks: none given. A page needs at least one.")
    sections = [
        _section(f"section-{number}", *given) for number, given in enumerate(notebooks, start=1)
    ]
    scripts: list[str] = []
    if any(each.charts for each in sections):
        scripts += [vega.library(), (TEMPLATES / "charts.js").read_text("utf-8")]
    if any(each.tables for each in sections):
        scripts += [charts_tables.library(), charts_tables.script()]
    return _frame().render(
        title=title,
        sections=sections,
        run=run,
        leads=leads,
        lowered=0 if leads else 1,
        has_code=any(section.has_code for section in sections),
        scripts=[Markup(script) for script in scripts],
        style=Markup((TEMPLATES / "page.css").read_text("utf-8")),
        policy=Markup(_policy(scripts)),
    )


def _section(anchor: str, title: str, notebook: NotebookNode) -> _Section:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    prose = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    first = prose.strip().partition("\n")[0]
    return _Section(
        anchor,
        title,
        question=first.removeprefix("# ") if first.startswith("# ") else "",
        cells=notebook.cells,
        failed=any(output.output_type == "error" for output in outputs),
        has_code=any(cell.cell_type == "code" and cell.source.strip() for cell in notebook.cells),
        charts=any(MIME in output.get("data", {}) for output in outputs),
        tables=any(
            charts_tables.CLASS in output.get("data", {}).get("text/html", "") for output in outputs
        ),
    )


@cache
def _frame() -> Template:
    """Return the template of a page, with nbconvert's filters for what a cell holds."""
    from markupsafe import Markup
    from nbconvert.filters import Highlight2HTML, ansi2html

    untyped: Any = (Highlight2HTML, ansi2html)
    highlight, ansi = untyped
    code = highlight(pygments_lexer="ipython3")
    filters: dict[str, Callable[..., object]] = {
        "ansi": lambda text: Markup(ansi(text)),
        "base64": lambda text: b64encode(text.encode()).decode(),
        "code": lambda text: Markup(code(text)),
        "html": Markup,
        "markdown": _markdown,
        "alternative": _alternative,
    }
    made = _environment(filters, autoescape=True)
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made.get_template("page.html.j2")


def template(name: str, filters: Mapping[str, Callable[..., object]], **options: Any) -> Template:
    """Return one of the report's templates; `options` are those of jinja2's Environment."""
    return _environment(filters, **options).get_template(name)


def _environment(filters: Mapping[str, Callable[..., object]], **options: Any) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, **options)
    made.filters |= filters
    return made


def _markdown(text: str, lowered: int, *, is_foreign: bool = False) -> Markup:
    """Return Markdown as HTML, its headings this many levels lower; HTML in foreign text is shown as text."""
    from markupsafe import Markup
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def heading(self, text: str, level: int, **about: Any) -> str:
            return str(super().heading(text, min(level + lowered, 6), **about))

    renderer = Renderer(
        escape=is_foreign, allow_harmful_protocols=not is_foreign, exclude_anchor_links=True
    )
    return Markup(MarkdownWithMath(renderer=renderer).render(text))


def _alternative(output: NotebookNode) -> str:
    """Return what a picture shows, in words."""
    told = output["data"].get(MIME, {}).get("description") or output.get("metadata", {}).get("alt")
    return told or "a picture without description"


def _policy(scripts: Sequence[str]) -> str:
    """Return a policy under which nothing is fetched and no script runs but `scripts`."""
    hashes = (
        f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    own = " ".join(hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {own}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def drawn(notebook: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
    """Return the notebook, which is changed, with a picture (SVG, as HTML) beside each chart that has none.

    For nbconvert and nbgrader: ``c.HTMLExporter.preprocessors = ["perfkit.report.html.drawn"]``. No data are fetched.
    PerfkitError where vl-convert-python is not installed.
    """
    try:
        from vl_convert import vegalite_to_svg
    except ModuleNotFoundError as e:
        raise PerfkitError(
            "vl-convert-python, which draws charts as pictures, is not installed. "
            "Install it with `pip install 'perfkit[labs]'`."
        ) from e

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if MIME in data and not {"text/html", "image/svg+xml", "image/png"} & set(data):
                spec = {**data[MIME], "padding": PADDING}
                picture = vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
                alternative = escape(str(spec.get("description", "a chart without description")))
                source = f"data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}"
                data["text/html"] = f'<img alt="{alternative}" src="{source}">'
    return notebook, resources
