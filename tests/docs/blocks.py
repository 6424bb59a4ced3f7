"""The parts of pages that are made from objects: rules, figures, tables, readers, measured speed."""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from bench import table as speed
from pairs import cases, recorded
from pairs import rates as counted

from docs.figures import Described, figures, heading
from perfkit import readers
from perfkit.diagnosis.commands import ASKS
from perfkit.diagnosis.finding import HORIZONS
from perfkit.diagnosis.rules import rules
from perfkit.diagnosis.rules.rule import Rule
from perfkit.profile import KINDS
from perfkit.report.notebooks import NOTEBOOKS
from perfkit.schema import INFINITY, Column, Table
from perfkit.tables import METRICS, TABLES

# How a step of advice names what each run is recorded with, and where that is explained.
RECORDED_WITH = {
    "{nsys}": "Nsight Systems",
    "{ncu}": "Nsight Compute",
    "{torch}": "PyTorch's profiler",
    "{callers}": "PyTorch's profiler or call stacks",
    **{place: f"`{of_nvidia}`, on AMD's `{of_amd}`" for place, (of_nvidia, of_amd) in ASKS.items()},
}
SPOKEN = {"1": "a fraction"}
CONTAINERS = Path(__file__).parents[2] / "docs" / "containers"


def anchor(title: str) -> str:
    """Return the name by which a link finds a heading.

    >>> anchor("KERNELS `start_ns`")
    'kernels-start_ns'
    """
    return re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")


def link(text: str, page: str, title: str) -> str:
    """Return a link to a heading of a page."""
    return f"[{text}]({page}#{anchor(title)})"


def findings() -> Iterator[str]:
    """Yield a heading and a description of each finding."""
    for rule in rules().values():
        yield f"## `{rule.name}`"
        yield f"*{rule.question}*"
        yield "\n".join(_about(rule))
        yield from _advice(rule)


def _about(rule: Rule) -> Iterator[str]:
    needs = ", ".join(" or ".join(map(_table_link, need.split("|"))) for need in rule.needs)
    checked = [objection.value for objection in rule.objections]
    doubts = [rule.indirect, *(link(value, "", value) for value in checked)]
    yield f"- Needs: {needs}"
    yield f"- Reported from: {rule.threshold}"
    yield f"- Target: {rule.target}"
    yield f"- Figures: {', '.join(map(_figure_link, rule.evidence))}"
    if any(doubts):
        yield f"- Doubted where: {'; '.join(filter(None, doubts))}"
    if rule.notebook:
        yield f"- Notebook: {link(f'`{rule.notebook.name}`', 'six_steps.md', rule.notebook.name)}"


def _advice(rule: Rule) -> Iterator[str]:
    """Yield what to do, by horizon; a run hides the steps that it makes pointless."""
    for horizon in HORIZONS:
        steps = [step for step in rule.advice if step.horizon == horizon]
        if not steps:
            continue
        yield f"What to do, {horizon}:"
        yield "\n".join(f"- {_plain(step.text)}" for step in steps)
        for code in dict.fromkeys(step.code for step in steps if step.code):
            yield f"```text\n{code.strip()}\n```"
    yield f"Measure next: {_plain(rule.next)}"


def _plain(text: str) -> str:
    for place, tool in RECORDED_WITH.items():
        text = text.replace(place, f"[{tool}](record.md)")
    return _escaped(text)


def _escaped(text: str) -> str:
    """Return a text in which no character but code and links means anything to Markdown."""
    parts = re.split(r"(`[^`]*`|\[[^\]]*\]\(record\.md\))", text)
    return "".join(
        part if i % 2 else re.sub(r"([*<|]|(?<!\w)_)", r"\\\1", part)
        for i, part in enumerate(parts)
    )


def _table_link(need: str) -> str:
    name = need.rpartition("/")[2]
    return link(need, "tables.md", name)


def _figure_link(id: str) -> str:
    title = heading(id, [figure.id for figure in all_figures()])
    return link(f"`{id}`", "figures.md", title)


@cache
def all_figures() -> list[Described]:
    """Return all figures; the runs that show them are read once."""
    return figures()


def of_figures() -> Iterator[str]:
    """Yield a heading and a description of each figure."""
    for figure in all_figures():
        yield f"## `{figure.id}`"
        unit = SPOKEN.get(figure.unit, figure.unit)
        lines = {
            "Label": figure.label,
            "Unit": unit,
            "Definition": figure.definition,
            "Source": figure.source,
        }
        yield "\n".join(f"- {name}: {_escaped(text)}" for name, text in lines.items() if text)


def of_tables() -> Iterator[str]:
    """Yield a heading and a description of each table and of each of its columns."""
    for table in TABLES.values():
        yield f"## {table.name}"
        sort = ", ".join(f"`{name}`" for name in table.sort)
        yield f"One row is {table.row}. Sorted by {sort}." if sort else f"One row is {table.row}."
        for column in table.columns:
            yield f"### {table.name} `{column.name}`"
            yield f"{_escaped(column.meaning)} (`{column.dtype}`{_range(table, column)})"


def _range(table: Table, column: Column) -> str:
    """Return which values a column can have, where that is limited by more than the length of a capture."""
    if table.limits and column.name == "value":
        return ", limits by metric"
    low, high = column.least, column.most
    if high == INFINITY:
        return f", {low:g} or more" if low > -INFINITY else ""
    return f", {low:g} to {high:g}" if high < 1e6 else ""


def metrics() -> Iterator[str]:
    """Yield the table of metrics that SAMPLES can hold."""
    rows = [f"| `{name}` | {_escaped(meaning)} |" for name, meaning in METRICS.items()]
    yield "\n".join(["| metric | meaning |", "|---|---|", *rows])


def formats() -> Iterator[str]:
    """Yield a heading for each reader: what it reads, how that is recorded, and the tables that it gives."""
    for name in (*readers.READERS, *readers.outside_names()):
        reader = readers.reader(name)
        if not reader.__name__.startswith("perfkit."):
            continue
        first, second = _documented(reader)[:2]
        yield f"## {title(reader)}"
        yield f"Reader `{name}`, kind `{reader.KIND}`: {KINDS[reader.KIND]}."
        yield f"Reads {first.partition(': ')[2]}"
        yield second
        yield f"Tables: {', '.join(map(_table_link, tables_of(reader)))}."


def title(reader: ModuleType) -> str:
    """Return the name of a format: its reader's docstring begins with it."""
    return _documented(reader)[0].partition(": ")[0]


def _documented(reader: ModuleType) -> list[str]:
    """Return the paragraphs of a reader's docstring as Markdown."""
    text = inspect.cleandoc(reader.__doc__ or "").replace("``", "`")
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def tables_of(reader: ModuleType) -> list[str]:
    """Return the tables that the code of a reader makes."""
    path = Path(importlib.import_module(reader.__name__).__file__ or "")
    files = path.parent.rglob("*.py") if path.name == "__init__.py" else [path]
    made = {"CAPTURE"}
    for each in files:
        for node in ast.walk(ast.parse(each.read_text(encoding="utf-8"))):
            made.update(_made(node))
    return [name for name in TABLES if name in made]


def _made(node: ast.AST) -> Iterator[str]:
    """Yield tables that an expression makes.

    `KERNELS.make(...)`, `tables.KERNELS` for a function that makes it, or a key of a dictionary of loaders.
    """
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "tables":
        yield node.attr
    if isinstance(node, ast.Attribute) and node.attr in ("make", "empty"):
        owner = node.value
        yield owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    elif isinstance(node, ast.Dict):
        yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))


def notebooks() -> Iterator[str]:
    """Yield the table of notebooks, and what a run must hold for each."""
    rows = [
        f"| `{name}` | {' or '.join(needs) or 'any run'} |" for name, needs in NOTEBOOKS.items()
    ]
    yield "\n".join(["| notebook | answers for a run with |", "|---|---|", *rows])


def speeds() -> Iterator[str]:
    """Yield the table of speed that `python -m tests.bench --keep` measured."""
    yield speed.shown()


def answers() -> Iterator[str]:
    """Yield the table of what two runs differ in, and the right exit status."""
    yield cases.table()


def rates() -> Iterator[str]:
    """Yield the table of how often each exit status came."""
    yield counted.table()


def recorded_pairs() -> Iterator[str]:
    """Yield the table of recorded pairs and what raw data say of their differences."""
    yield recorded.table()


def dockerfile() -> Iterator[str]:
    """Yield the file of a container for Docker."""
    yield _code("dockerfile", "Dockerfile")


def apptainer() -> Iterator[str]:
    """Yield the file of a container for Apptainer."""
    yield _code("text", "perfkit.def")


def _code(language: str, name: str) -> str:
    """Return a file of CONTAINERS as a block of code."""
    content = (CONTAINERS / name).read_text(encoding="utf-8")
    return f"```{language}\n{content}```"


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "findings": findings,
    "figures": of_figures,
    "tables": of_tables,
    "metrics": metrics,
    "formats": formats,
    "notebooks": notebooks,
    "speed": speeds,
    "answers": answers,
    "rates": rates,
    "recorded": recorded_pairs,
    "dockerfile": dockerfile,
    "apptainer": apptainer,
}
