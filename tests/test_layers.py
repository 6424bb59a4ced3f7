"""Who may import whom: imports point strictly down the layers, and one library lives in one place."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import nbformat
import pytest

import perfkit
from perfkit.profile import KINDS
from perfkit.readers import READERS
from perfkit.report.notebooks import BASELINE, JOB, NEEDS, NOTEBOOKS, RANKS, folder
from perfkit.tables import TABLES

ROOT = Path(perfkit.__file__).parent
LAYERS = (  # within a layer "a, b" lets b import a; what stands in SIDE_BY_SIDE layers does not see each other
    ("errors", "schema", "allocator"),
    (
        "impossible",
        "columns",
        "dump_tables",
        "tables",
        "names",
        "hardware",
        "profile",
        "format",
        "paths",
        "given",
        "settings",
        "job",
        "profilers",
    ),
    ("readers", "analysis", "charts", "workloads", "parallel"),
    ("cache", "discovery", "joining", "store", "run", "selection", "testing", "__init__"),
    ("diagnosis",),
    ("widgets", "report"),
    ("options", "terminal"),
    ("recorders",),
    ("logs",),  # a room of its own: nothing imports it
    ("dumps",),  # another one
    ("agents",),
    ("course",),
    ("cli", "__main__"),
)
SIDE_BY_SIDE = (2, 5)
ROOMS = ("logs", "dumps")  # nothing imports them
HOMES = {
    "altair": "charts|logs|dumps",
    "ipywidgets": "widgets|logs",
    "torch": "workloads",
    "click": "cli|options|terminal|recorders|logs|course",
    "mcp": "agents",
    "mcp_types": "agents",
}
HOMES |= {"hatchet": "readers"} | dict.fromkeys(("dask", "distributed"), "parallel")
HOMES |= dict.fromkeys(("papermill", "nbconvert"), "report")
PLACES = {
    part: (n, 0 if n in SIDE_BY_SIDE else i)
    for n, layer in enumerate(LAYERS)
    for i, part in enumerate(layer)
}
MODULES = sorted(ROOT.rglob("*.py"))


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes(file: Path) -> list[ast.AST]:
    return [*ast.walk(parsed(file))]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports, at its top or inside functions."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (
                (node.lineno, f"{'.' * node.level}{node.module}.{alias.name}")
                for alias in node.names
            )


def part_of(file: Path) -> str:
    """The part of perfkit a file belongs to: the module or folder right under it."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def is_allowed(importer: str, name: str) -> bool:
    """Whether a file of the part `importer` may import this dotted name."""
    top, *rest = name.split(".")
    if top != "perfkit":
        return importer in HOMES.get(top, importer).split("|") and not name.startswith(".")
    part = rest[0] if rest and rest[0] in PLACES else "__init__"
    return part == importer or PLACES[part] < PLACES[importer]


def test_imports_point_down() -> None:
    assert set() == {part_of(file) for file in MODULES} - {*PLACES}, (
        "parts of perfkit that are in no layer"
    )
    assert [] == [
        f"{file.relative_to(ROOT)}, line {line}: {name}"
        for file in MODULES
        for line, name in imports(file)
        if not is_allowed(part_of(file), name)
    ]


def test_rows_of_equal_values_keep_their_order() -> None:
    """Else the processor decides: numpy sorts with AVX-512 in another order than without, where values are equal."""
    code = {file: nodes(file) for file in MODULES}
    for file in folder().rglob("*.ipynb"):
        cells = (cell.source for cell in nbformat.read(file, 4).cells if cell.cell_type == "code")
        code[file] = [
            *ast.walk(ast.parse("\n".join(cell for cell in cells if not cell.startswith("%"))))
        ]
    calls = [(file, node) for file, among in code.items() for node in among if is_sorting(node)]
    assert len(calls) > 100
    assert [] == [
        f"{file}: {ast.unparse(call)[-60:]}" for file, call in calls if not is_stable(call)
    ]


def is_sorting(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sort_values"
    )


def is_stable(call: ast.Call) -> bool:
    """Whether a `sort_values` says so, or sorts by several columns, which pandas does stably."""
    is_one = not call.args or isinstance(call.args[0], ast.Constant)
    return not is_one or any(ast.unparse(given) == "kind='stable'" for given in call.keywords)


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_imports_a_room_nor_names_a_module_of_it(room: str) -> None:
    """The core knows readers of rooms as it knows those of other packages: by their entry points."""
    others = [file for file in MODULES if part_of(file) != room]
    importing = [
        f"{file}: {name}"
        for file in others
        for _, name in imports(file)
        if name.startswith(f"perfkit.{room}")
    ]
    texts = [
        (file, node.value)
        for file in others
        for node in nodes(file)
        if isinstance(node, ast.Constant)
    ]
    named = [
        f"{file}: {text}"
        for file, text in texts
        if isinstance(text, str) and text.startswith(f"perfkit.{room}")
    ]
    assert [] == importing + named


BETWEEN = (
    "__init__",
    "text",
    "foreign",
)  # of readers, but none: their list, what all share, what none reads


def test_a_reader_does_not_import_a_reader() -> None:
    for file in (ROOT / "readers").rglob("*.py"):
        own = file.relative_to(ROOT / "readers").parts[0].removesuffix(".py")
        others = [n for _, n in imports(file) if n.startswith("perfkit.readers.")]
        others = [n for n in others if n.split(".")[2] not in (own, *BETWEEN)]
        assert [] == others, f"{file.name} imports {others}"
    for file in (file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        room, own = file.relative_to(ROOT).parts[:2]
        own = own.removesuffix(".py")
        names = [name for _, name in imports(file) if name.startswith(f"perfkit.{room}.")]
        others = {name.split(".")[2] for name in names}
        among = {*IN_ROOMS} - {own}
        assert own not in IN_ROOMS or set() == others & among, f"{file.name} imports {others}"


IN_ROOMS = tuple(
    point.name
    for point in entry_points(group="perfkit.readers")
    if point.value.startswith(tuple(f"perfkit.{room}." for room in ROOMS))
)
NAMED = (
    "readers",
    *ROOMS,
    "workloads",
    "recorders",
)  # parts that may name a reader; workloads and recorders run such programs


def test_no_part_but_readers_names_a_reader() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for file in MODULES
        if part_of(file) not in NAMED
        for node in nodes(file)
        if isinstance(node, ast.Constant) and node.value in (*READERS, *IN_ROOMS)
    ]
    assert [] == found


def test_tags_of_cells_name_tables_and_kinds() -> None:
    named = {need for needs in NOTEBOOKS.values() for need in needs}
    for notebook in folder().rglob("*.ipynb"):
        for cell in nbformat.read(notebook, as_version=4).cells:
            tags = [
                tag.removeprefix(NEEDS)
                for tag in cell.metadata.get("tags", [])
                if tag.startswith(NEEDS)
            ]
            named |= {need for tag in tags for need in tag.split("|")}
    assert named <= {*TABLES, *KINDS, BASELINE, JOB, RANKS, RANKS}


def defined(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top level of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    plain = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else plain
    parts = [
        part
        for target in targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def test_a_module_is_short_and_defines_each_name_once() -> None:
    # The later definition would replace the earlier silently, as where two modules are made one.
    for file in MODULES:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 600, file
        names = [name for part in parsed(file).body for name in defined(part)]
        assert [] == [name for name, count in Counter(names).items() if count > 1], file


def test_the_rule_itself() -> None:
    allowed = [
        ("readers", "perfkit.tables"),
        ("run", "perfkit.cache"),
        ("selection", "perfkit.run.Run"),
    ]
    allowed += [("cli", "perfkit.load"), ("charts", "altair")]
    refused = [
        ("readers", "perfkit.cache.folder"),
        ("readers", "perfkit.load"),
        ("analysis", "perfkit.readers.X"),
    ]
    refused += [
        ("cache", "perfkit.run.load"),
        ("report", "perfkit.widgets"),
        ("run", "perfkit.load"),
    ]
    refused += [("analysis", "altair"), ("run", ".tables"), ("widgets", "perfkit.logs")]
    assert [] == [one for one in allowed if not is_allowed(*one)] + [
        one for one in refused if is_allowed(*one)
    ]


GRAMMAR = {
    "lark",
    "rfc3987_syntax",
    "isoduration",
}  # of IRIs, which jsonschema compiles for 1 s, and of durations


def loaded_after(before: str, *codes: str) -> list[set[str]]:
    """What modules are loaded when a new process has run `before`, then each code in a copy of it.

    The copies have not seen each other's imports.
    """
    text = "import os, sys\n"
    for code in codes:
        text += (
            f"if not os.fork():\n exec({code!r})\n print(*sys.modules, flush=True)\n os._exit(0)\n"
        )
        text += "assert 0 == os.wait()[1]\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{text}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT.parent,
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


CHARTS = "import perfkit.charts, altair; assert 'default' == altair.renderers.active == altair.theme.active"
IRIS = """
import perfkit.charts, jsonschema
f = jsonschema.FormatChecker()
assert f.conforms("http://perfkit.example/\\u00e4", "iri")
assert not f.conforms("no scheme", "iri")
assert f.conforms("a/b", "iri-reference")
assert f.conforms("P1D", "duration") and not f.conforms("a day", "duration")
import rfc3987_syntax
assert rfc3987_syntax.is_valid_syntax("iri", "a:b")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_processes_load_nothing_heavy() -> None:
    """Nor does an import change what the user set in Altair. jsonschema still checks IRIs where somebody asks it to."""
    heavy = {*HOMES, "jupyterlab", "itables", "matplotlib", "IPython"}
    report = "import perfkit.cli\nfrom perfkit import report, widgets\nimport papermill, nbconvert"
    light, loaded = loaded_after("", "import perfkit", report)
    assert set() == heavy & light
    # The libraries of a report import jsonschema; nothing asks it for IRIs, in the command as in a kernel.
    assert {"jsonschema", "altair", "nbformat", "papermill"} <= loaded
    assert set() == GRAMMAR & loaded
    parts = [f"import perfkit.{part}" for part in ("diagnosis", "report", "widgets")]
    *kernels, checked = loaded_after("import ipykernel.kernelapp, pandas", CHARTS, *parts, IRIS)
    assert [set()] * 4 == [GRAMMAR & one for one in kernels]
    assert GRAMMAR <= checked
