"""One self-contained HTML page from executed notebooks.

The page requests nothing: styles, the chart library and all data are inside it, and its content security policy lets a
browser load nothing else. Outputs show what stood in a profile: charts and Markdown are escaped here, HTML comes from
`perfkit.charts.tables`, which escapes; should a script or an event handler reach the page all the same, the policy,
which names the page's own scripts by their hash, keeps it from running. A chart stays in the notebook as data; its
picture stands beside it, with its description for those who do not see it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import nbformat

from perfkit.charts import tables as charts_tables
from perfkit.charts.theme import MIME

if TYPE_CHECKING:
    from nbconvert import HTMLExporter
    from nbformat import NotebookNode


TEMPLATES = Path(__file__).parent / "template"
VEGA_LITE = "6.4"
SHOWN = [MIME, "text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/latex", "text/plain"]
_HEADING = re.compile(r"<(/?)h([1-5])\b")
_QUESTION = re.compile(r"\A\s*#\s+(.+?)\s*#*\s*$", re.MULTILINE)


@dataclass(frozen=True)
class _Section:
    """One notebook on the page; `question` is its first heading, `body` HTML."""

    anchor: str
    title: str
    question: str
    body: str
    failed: bool
    charts: bool
    tables: bool


class _Aside:
    """Long tables while nbconvert works: it parses all that it has made once more, which takes seconds for them."""

    def __init__(self) -> None:
        self._mark, self._kept = token_hex(16), [""]

    def put(self, html: str) -> str:
        """Return what stands for `html` until `back`."""
        if charts_tables.CLASS not in html:
            return html
        self._kept.append(html)
        return f"{self._mark}-{len(self._kept) - 1}."

    def back(self, body: str) -> str:
        """Return `body` with what was put aside."""
        return re.sub(rf"{self._mark}-(\d+)\.", lambda found: self._kept[int(found[1])], body)


PADDING = 16  # pixels: where the picture is looked at, its letters may be wider than where it was made
PICTURES = {"text/html", "image/svg+xml", "image/png"}


def page(notebook: NotebookNode, *, title: str) -> str:
    """Return one executed notebook as a page: HTML."""
    return pages([(title, notebook)], title=title)


def pages(notebooks: Sequence[tuple[str, NotebookNode]], *, title: str) -> str:
    """Return executed notebooks as the sections of one HTML page, under a table of contents.

    Parameters
    ----------
    notebooks
        Title of the section and notebook as nbformat reads it, in the order of the page: what a reader should see
        first comes first. At least one, else ValueError. A section with a failed step is marked in the contents.
    title
        Title of the page. Beside the outputs it holds 0.9 MB for charts and 0.6 MB for tables that can be searched.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    if not notebooks:
        raise ValueError("notebooks: none given. A page needs at least one.")
    aside = _Aside()
    exporter = _exporter(aside)
    sections = [_section(exporter, aside, number, *given) for number, given in enumerate(notebooks, start=1)]
    scripts = _scripts(any(each.charts for each in sections), any(each.tables for each in sections))
    folder = TEMPLATES / "perfkit"
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html.j2").render(
        title=title,
        sections=[{**vars(section), "body": Markup(section.body)} for section in sections],
        scripts=[Markup(script) for script in scripts],
        style=Markup((folder / "page.css").read_text("utf-8")),
        policy=Markup(_policy(scripts)),
    )


def _exporter(aside: _Aside) -> HTMLExporter:
    """Return nbconvert's exporter with the template and the filters it uses."""
    import nbconvert
    from traitlets.config import Config

    make: Any = nbconvert.HTMLExporter
    exporter: HTMLExporter = make(
        template_name="perfkit",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_anchor_links=True,
        embed_images=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        filters={
            "aside": aside.put,
            "demoted": _demoted,
            "escaped_markdown": _escaped_markdown,
            "script_json": _script_json,
            "alternative": _alternative,
        },
        config=Config({"NbConvertBase": {"display_data_priority": SHOWN}}),
    )
    return exporter


def _section(exporter: HTMLExporter, aside: _Aside, number: int, title: str, notebook: NotebookNode) -> _Section:
    body, _ = exporter.from_notebook_node(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    failed = any(output.output_type == "error" for output in outputs)
    charts = any(MIME in output.get("data", {}) for output in outputs)
    tables = any(charts_tables.CLASS in output.get("data", {}).get("text/html", "") for output in outputs)
    prose = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    question = found[1] if (found := _QUESTION.match(prose)) else ""
    return _Section(f"section-{number}", title, question, aside.back(body), failed, charts, tables)


def _demoted(html: str) -> str:
    """Lower headings by one level: the page's title is its only h1."""
    return _HEADING.sub(lambda found: f"<{found[1]}h{int(found[2]) + 1}", html)


def _escaped_markdown(text: str) -> str:
    """Render Markdown that a step computed: HTML in it is shown as text, for names in it are foreign."""
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    renderer = IPythonRenderer(escape=True, allow_harmful_protocols=False, exclude_anchor_links=True)
    return str(MarkdownWithMath(renderer=renderer).render(text))


def _script_json(value: object) -> str:
    """Return JSON that cannot end the script element around it: all that begins a tag is written as escape."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _alternative(output: Mapping[str, Any]) -> str:
    """Return what a picture shows, in words, escaped for an attribute."""
    said = output["data"].get(MIME, {}).get("description") or output.get("metadata", {}).get("alt")
    return escape(str(said or "a picture without description"))


def _scripts(charts: bool, tables: bool) -> list[str]:
    drawing = [_bundle(), (TEMPLATES / "perfkit" / "charts.js").read_text("utf-8")] if charts else []
    return drawing + ([charts_tables.library(), charts_tables.script()] if tables else [])


@cache
def _bundle() -> str:
    """Return the chart library, about 0.9 MB; building it takes a second."""
    from vl_convert import javascript_bundle

    library = str(javascript_bundle("window.vegaEmbed=vegaEmbed;", vl_version=VEGA_LITE))
    return re.sub("</(script)", r"<\\/\1", library, flags=re.IGNORECASE)


def _policy(scripts: Sequence[str]) -> str:
    """Return a policy under which nothing is fetched and no script runs but `scripts`."""
    hashes = (f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    own = " ".join(hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {own}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def drawn(notebook: nbformat.NotebookNode, resources: dict[str, Any]) -> tuple[nbformat.NotebookNode, dict[str, Any]]:
    """Return the notebook, which is changed, with a picture (SVG, as HTML) beside each chart that has none.

    For nbconvert, and so for nbgrader's feedback: ``c.HTMLExporter.preprocessors = ["perfkit.report.html.drawn"]``.
    Raises
    ValueError if a chart's data lie elsewhere: they are not fetched.
    """
    from vl_convert import vegalite_to_svg

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if MIME in data and not PICTURES & set(data):
                spec = {**data[MIME], "padding": PADDING}
                picture = vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
                alternative = escape(str(spec.get("description", "a chart without description")))
                source = f"data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}"
                data["text/html"] = f'<img alt="{alternative}" src="{source}">'
    return notebook, resources
