"""Self-contained HTML pages from executed notebooks, and a report without names of the machine that made it.

Styles, the chart library and all data are inside the page, and its content security policy lets a browser load nothing
else and run no script but the ones whose hash it names. Charts and Markdown are escaped here, HTML comes from
`perfkit.charts.tables`, which escapes.

A report names files by the run, not by where they lie (`clean`): `/home/ann/runs/mlp/nsys.sqlite` becomes
`mlp/nsys.sqlite`. Folders of the machine become a word: `~` (home), `.` (working folder), `python`.
"""

from __future__ import annotations

import html
import json
import os
import platform
import re
import sys
import sysconfig
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import nbformat
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfkit import cache as perfkit_cache
from perfkit.charts import tables as charts_tables
from perfkit.charts.theme import MIME, VEGA_LITE
from perfkit.report.output import TEXT

if TYPE_CHECKING:
    from jinja2 import Template
    from nbconvert import HTMLExporter
    from nbformat import NotebookNode


TEMPLATES = Path(__file__).parent / "template"
SHOWN = [MIME, "text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/latex", "text/plain"]


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


class Lead(NamedTuple):
    """A page of a report as the others link to it; `question` is its first heading."""

    href: str
    name: str
    question: str
    is_here: bool = False
    failed: bool = False


PADDING = 16  # pixels: where the picture is looked at, its letters may be wider than where it was made
TEXTS = {".html", ".ipynb", ".json", ".md", ".csv", ".txt", ".svg"}
PARAMETERS = "injected-parameters"  # papermill's tag of the cell with the parameters that it was given
SET_IT = "  # a name: set it to the path of yours before you run this notebook"
SHARED = {"/usr", "/usr/local", "/opt", "/tmp", "/var/tmp", "/home", "/mnt"}  # folders of every machine
LEAST_USER, LEAST_HOST = 4, 8  # characters: a shorter name can be a word of the report
# A path ends before a separator (two backslashes in JSON), or where no further character can be part of its last name.
_END = r"(?:(?P<separator>\\\\|[/\\])|(?![\w-]|\.\w))"
# A folder below the root may be a part of another path: it begins where no name ends, or after a terminal's colour.
_BEGIN = r"(?:(?<![\w.~])|(?<=\x1b\[0m)|(?<=\x1b\[\d\dm)|(?<=\x1b\[\d;\d\dm))"
_RELATIVE = r"(?<![\w.~/\\-])"
_PROGRAM = re.compile(r"(<script\b(?![^>]*application/json)[^>]*>[^<]*(?:<(?!/script>)[^<]*)*</script>)", re.IGNORECASE)
_DATA = re.compile(r"(data:text/[\w.+-]+(?:;[\w=-]+)*;base64,)([A-Za-z0-9+/]+={0,2})")


class _Machine:
    """The names of this machine, in every form in which they stand in a file."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._words: dict[str, str] = {}
        patterns = []
        for path in sorted(names, key=len, reverse=True):
            parts = Path(path).parts
            if len(parts) < 2 or path in SHARED:
                continue
            short = _BEGIN if len(parts) == 2 else ""
            begin = short if Path(path).is_absolute() else _RELATIVE
            for form, word in zip(_forms(path), _forms(names[path]), strict=True):
                if form not in self._words:
                    self._words[form] = word
                    patterns.append(begin + re.escape(form))
        firsts = re.escape("".join({form[0] for form in self._words}))  # most characters begin no path: they go first
        self._paths = re.compile(f"(?=[{firsts}])(?P<path>{'|'.join(patterns)}){_END}") if patterns else None
        self._own = [(name, re.compile(pattern), word) for name, pattern, word in _own_names()]

    def text(self, text: str) -> str:
        """Return a text without names of this machine, also in the tables that it holds as data."""
        made = text  # most texts hold none: looking for the names is faster than a pattern
        if self._paths and ("/" in text or "\\" in text) and any(name in text for name in self._words):
            made = self._paths.sub(self._named, text)
        for name, pattern, word in self._own:
            made = pattern.sub(word, made) if name in made else made
        return _DATA.sub(self._data, made) if "data:text/" in made else made

    def value(self, value: Any) -> Any:
        """Return a value of JSON without names of this machine."""
        if isinstance(value, dict):
            return {self.text(name): self.value(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.value(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def _named(self, found: re.Match[str]) -> str:
        word, separator = self._words[found["path"]], found["separator"]
        return f"{word}{separator}" if word and separator else word or ("" if separator else ".")

    def _data(self, found: re.Match[str]) -> str:
        try:
            before = b64decode(found[2], validate=True).decode("utf-8")
        except ValueError:
            return found[0]  # it is no text
        after = self.text(before)
        return found[0] if after == before else found[1] + b64encode(after.encode(**TEXT)).decode()


def page(notebook: NotebookNode, *, title: str, run: str = "", leads: Sequence[Lead] = ()) -> str:
    """Return one executed notebook as a page: HTML.

    `run`: what stands above the links to the other pages of the report, `leads`.
    """
    return _rendered([(title, notebook)], title=title, run=run, leads=leads)


def pages(notebooks: Sequence[tuple[str, NotebookNode]], *, title: str) -> str:
    """Return executed notebooks, by the titles of their sections, as one HTML page under a table of contents."""
    return _rendered(notebooks, title=title)


def _rendered(
    notebooks: Sequence[tuple[str, NotebookNode]], *, title: str, run: str = "", leads: Sequence[Lead] = ()
) -> str:
    from markupsafe import Markup

    if not notebooks:
        raise ValueError("notebooks: none given. A page needs at least one.")
    exporter = _exporter(lowered=0 if leads else 1)
    sections = [_section(exporter, number, *given) for number, given in enumerate(notebooks, start=1)]
    scripts: list[str] = []
    if any(each.charts for each in sections):
        scripts += [_bundle(), (TEMPLATES / "perfkit" / "charts.js").read_text("utf-8")]
    if any(each.tables for each in sections):
        scripts += [charts_tables.library(), charts_tables.script()]
    return _frame().render(
        title=title,
        sections=[{**vars(section), "body": Markup(section.body)} for section in sections],
        run=run,
        leads=leads,
        has_code=any('class="code"' in section.body for section in sections),
        scripts=[Markup(script) for script in scripts],
        style=Markup((TEMPLATES / "perfkit" / "page.css").read_text("utf-8")),
        policy=Markup(_policy(scripts)),
    )


@cache
def _frame() -> Template:
    return template("page.html.j2", autoescape=True)


def template(name: str, filters: Mapping[str, Callable[..., object]] | None = None, **options: Any) -> Template:
    """Return one of the report's templates; `options` are those of jinja2's Environment."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(TEMPLATES / "perfkit"), undefined=StrictUndefined, **options)
    environment.filters |= filters or {}
    return environment.get_template(name)


@cache
def _exporter(*, lowered: int) -> HTMLExporter:
    """Return nbconvert's exporter with the template and its filters; `lowered` is by how many levels headings are."""
    import nbconvert
    from nbconvert.filters import Highlight2HTML
    from traitlets.config import Config

    make: Any = nbconvert.HTMLExporter
    highlight: Any = Highlight2HTML
    exporter: HTMLExporter = make(
        template_name="perfkit",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_anchor_links=True,
        embed_images=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        default_preprocessors=[],
        filters={
            "highlight_code": highlight(pygments_lexer="ipython3"),
            "demoted": lambda text: re.sub(r"<(/?)h([1-5])\b", lambda one: f"<{one[1]}h{int(one[2]) + lowered}", text),
            "escaped_markdown": _escaped_markdown,
            "alternative": lambda output: escape(
                output["data"].get(MIME, {}).get("description")
                or output.get("metadata", {}).get("alt")
                or "a picture without description"
            ),
        },
        config=Config({"NbConvertBase": {"display_data_priority": SHOWN}}),
    )
    exporter.environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return exporter


def prepare() -> None:
    """Import and compile what the pages of a report need."""
    output = nbformat.v4.new_output("display_data", {"text/html": "", "text/plain": ""})
    cells = [nbformat.v4.new_markdown_cell("#"), nbformat.v4.new_code_cell("pass", outputs=[output])]
    _section(_exporter(lowered=0), 0, "", nbformat.v4.new_notebook(cells=cells))
    _frame()
    _bundle()
    charts_tables.library()


# A notebook that nbconvert need not copy whole, three times: the template changes nothing in it.
_Unchanged: Any = type("_Unchanged", (nbformat.NotebookNode,), {"__deepcopy__": lambda self, memo: self})


def _section(exporter: HTMLExporter, number: int, title: str, notebook: NotebookNode) -> _Section:
    from nbconvert import TemplateExporter

    # The exporter's own function parses all HTML once more, which takes seconds, for what the template writes itself.
    body, _ = TemplateExporter.from_notebook_node(exporter, _Unchanged(notebook))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    failed = any(output.output_type == "error" for output in outputs)
    charts = any(MIME in output.get("data", {}) for output in outputs)
    tables = any(charts_tables.CLASS in output.get("data", {}).get("text/html", "") for output in outputs)
    prose = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    question = found[1] if (found := re.compile(r"\A\s*#\s+(.+?)\s*#*\s*$", re.MULTILINE).match(prose)) else ""
    return _Section(f"section-{number}", title, question, body, failed, charts, tables)


def _escaped_markdown(text: str) -> str:
    """Render Markdown that a step computed: HTML in it is shown as text, for names in it are foreign."""
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    renderer = IPythonRenderer(escape=True, allow_harmful_protocols=False, exclude_anchor_links=True)
    return str(MarkdownWithMath(renderer=renderer).render(text))


@cache
def _bundle() -> str:
    """Return the chart library, about 0.9 MB; building it takes a second, once for each version."""

    def built() -> str:
        from vl_convert import javascript_bundle

        return str(javascript_bundle("window.vegaEmbed=vegaEmbed;", vl_version=VEGA_LITE))

    library = perfkit_cache.text(f"vega-lite-{VEGA_LITE}-{version('vl-convert-python')}", built)
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

    For nbconvert and nbgrader: ``c.HTMLExporter.preprocessors = ["perfkit.report.html.drawn"]``. No data are fetched.
    """
    from vl_convert import vegalite_to_svg

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


def clean(folder: Path, inputs: Mapping[str, str | Path | None], files: Iterable[Path] | None = None) -> None:
    """Take absolute paths, user name and host name of this machine out of the files of a report.

    `inputs` are the paths that it was made from, by their parameters: of two with one name the second is
    `baseline/mlp`. `files` are those to clean, all if not given.
    """
    machine = _Machine({**_folders(folder), **_names(inputs)})
    for file in sorted(folder.rglob("*")) if files is None else files:
        if file.suffix == ".parquet":
            _clean_table(file, machine)
        elif file.suffix in TEXTS:
            before = file.read_bytes().decode("utf-8")
            after = _cleaned(file.suffix, before, machine, inputs)
            if after != before:
                file.write_text(after, newline="", **TEXT)


def _names(inputs: Mapping[str, str | Path | None]) -> dict[str, str]:
    """Return the name of each input by its path, as given and whole, and none for the folders that inputs lie in."""
    names: dict[str, str] = {}
    parents: dict[str, str] = {}
    for parameter, given in inputs.items():
        path = Path(given or "").absolute()
        if given and path.name:
            name = f"{parameter}/{path.name}" if path.name in names.values() else path.name
            for form in (path, path.resolve()):
                names[str(form)] = name if form.name == path.name else form.name
                parents[str(form.parent)] = ""
            if len(Path(given).parts) > 1 and Path(given).name != "..":
                names[str(Path(given))] = name
    return parents | names


def _folders(report: Path) -> dict[str, str]:
    """Return the word for each folder of this machine that a text may name; a later one goes before."""
    installed = sysconfig.get_paths()
    folders = {
        tempfile.gettempdir(): "tmp",
        str(perfkit_cache.root() or ""): "cache",
        **dict.fromkeys((sys.base_prefix, sys.prefix), "python"),
        **{installed[name]: "python" for name in ("stdlib", "platstdlib", "purelib", "platlib")},
        str(Path(__file__).parents[2]): "",
        str(Path.home()): "~",
        os.environ.get("HOME", ""): "~",
        **{str(path): "." for path in (report.parent, report, Path.cwd())},
    }
    return {form: word for path, word in folders.items() if path for form in (path, os.path.realpath(path))}


def _forms(text: str) -> tuple[str, ...]:
    """Return a text as it stands in prose, HTML, JSON, JSON in a script, Python, and an address."""
    escaped = json.dumps(text)[1:-1]
    in_script = escaped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    in_json = json.dumps(text, ensure_ascii=False)[1:-1]
    return (text, html.escape(text), escaped, in_json, in_script, repr(text)[1:-1], quote(os.fsencode(text)))


def _own_names() -> Iterable[tuple[str, str, str]]:
    """Yield the user (as a folder) and the host (alone), unless they are words, as patterns, and what replaces them."""
    for user in {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")} - {"root", "user"}:
        if len(user) >= LEAST_USER:
            yield user, rf"(?<=[/\\]){re.escape(user)}(?=[/\\])", "USER"
    for host in dict.fromkeys((platform.node(), platform.node().partition(".")[0])):
        if len(host) >= LEAST_HOST and re.search(r"[\d.-]", host):
            yield host, rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST"


def _cleaned(suffix: str, text: str, machine: _Machine, inputs: Mapping[str, str | Path | None]) -> str:
    """Return the text of a file without names of this machine."""
    if suffix == ".html":
        # The policy of a page names its own programs by their hash.
        return "".join(part if number % 2 else machine.text(part) for number, part in enumerate(_PROGRAM.split(text)))
    if suffix not in (".ipynb", ".json"):
        return machine.text(text)
    before = json.loads(text)
    after = machine.value(_without_places(before, inputs) if suffix == ".ipynb" else before)
    # With an indent, json.dumps takes ten times as long, which only the summary is worth.
    indent = None if suffix == ".ipynb" else 1
    return text if after == before else json.dumps(after, indent=indent, ensure_ascii=False) + "\n"


def _without_places(notebook: dict[str, Any], inputs: Mapping[str, str | Path | None]) -> dict[str, Any]:
    """Return an executed notebook without where it lay; its parameters say which of them are names only."""
    metadata = dict(notebook.get("metadata", {}))
    if "papermill" in metadata:
        places = {"input_path", "output_path", "environment_variables"}
        metadata["papermill"] = {name: one for name, one in metadata["papermill"].items() if name not in places}
    named = tuple(f"{parameter} = " for parameter, path in inputs.items() if path)
    cells = list(notebook["cells"])
    for number, cell in enumerate(cells):
        if PARAMETERS in cell["metadata"].get("tags", ()):
            lines = "".join(cell["source"]).split("\n")
            source = "\n".join(f"{line}{SET_IT}" if line.startswith(named) else line for line in lines)
            cells[number] = cell | {"source": source.splitlines(keepends=True)}
    return notebook | {"metadata": metadata, "cells": cells}


def _clean_table(file: Path, machine: _Machine) -> None:
    """Clean the texts of a Parquet file and what is noted in it; most tables hold no path and stay as they are."""
    with pa.OSFile(os.fsencode(file)) as opened:  # a path as text must be UTF-8
        parquet = pq.ParquetFile(opened)
        schema = parquet.schema_arrow
        notes = repr([schema.metadata, *(field.metadata for field in schema)])
        kinds = {f.name: f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema}
        is_text = (pa.types.is_string, pa.types.is_large_string)
        stored = parquet.read(columns=[name for name, kind in kinds.items() if any(holds(kind) for holds in is_text)])
    changes = {}
    for name, column in zip(stored.column_names, stored.columns, strict=True):
        is_dictionary = pa.types.is_dictionary(column.type)
        values = [chunk.dictionary for chunk in column.chunks] if is_dictionary else [pc.unique(column)]
        texts = {text for each in values for text in each.to_pylist() if text is not None}
        if made := {text: new for text in texts if (new := machine.text(text)) != text}:
            changes[name] = made
    if not changes and machine.text(notes) == notes:
        return
    with pa.OSFile(os.fsencode(file)) as opened:
        frame = pq.ParquetFile(opened).read().to_pandas()
    frame.attrs = {}
    for name, made in changes.items():
        is_category = isinstance(frame[name].dtype, pd.CategoricalDtype)
        values = frame[name].astype("string").replace(made)
        frame[name] = values.astype(object).astype("category") if is_category else values.astype(frame[name].dtype)
    with file.open("wb") as written:
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), written, compression="zstd")
