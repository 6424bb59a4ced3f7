"""One rule is one object in one place: nothing else names it, and no condition reads a sentence."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from diagnosis.traces import MS, view
from frames import kernels

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import rules as package
from perfkit.diagnosis.finding import Gain
from perfkit.diagnosis.rules import by_kind, rules, snippets
from perfkit.diagnosis.rules.changes import Change
from perfkit.diagnosis.rules.idle import IDLE
from perfkit.diagnosis.rules.rule import Known, Rule, tell

ROOT = Path(perfkit.__file__).parent
FOLDER = Path(package.__file__).parent
# Names of rules that are also words of tables, columns, families of kernels, ranges and options.
# A condition on a finding's rule is caught by another test, whatever the word.
WORDS = {
    *("atomics", "attention", "bank_conflicts", "computation", "divergence", "exposed_copy"),
    *("exposed_communication", "fusion", "idle", "imbalance", "input", "launch_overhead", "layout"),
    *(
        "narrow_loads",
        "precision",
        "ranks",
        "spills",
        "start_up",
        "synchronisation",
        "tensor_cores",
    ),
    *("uncoalesced", "warm_up"),
}
# What people read, and what names a figure, a unit or a command: all of these stand for objects.
TEXTS = {
    *("title", "source", "why", "reason", "text", "explanation", "verdict", "label", "definition"),
    *("note", "because", "unit", "id", "figure_id", "command", "message", "sentence", "step"),
}


# Modules of rules: a theme of the diagnosis, or those of a room.
RULES_MODULE = re.compile(r"diagnosis/rules/|(?:logs|dumps)/(?:\w+/)?(?:\w+_)?rules\.py:")
PARTS = {
    *("startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix"),
    *("split", "rsplit", "replace", "find", "index", "contains", "match", "fullmatch", "extract"),
}
PATTERNS = {"search", "match", "fullmatch", "sub", "findall", "split"}


def trees(folder: Path) -> Iterator[tuple[str, ast.AST]]:
    for file in sorted(folder.rglob("*.py")):
        yield str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))


def nodes_of_package() -> Iterator[tuple[str, ast.AST]]:
    for name, tree in trees(ROOT):
        for node in ast.walk(tree):
            yield f"{name}:{getattr(node, 'lineno', 0)}", node


def test_no_rule_is_named_outside_its_module() -> None:
    names = set(rules()) - WORDS
    assert len(names) > 55
    found = [
        f"{place}: {node.value}"
        for place, node in nodes_of_package()
        if isinstance(node, ast.Constant) and node.value in names
    ]
    homes = [place for place in found if RULES_MODULE.match(place)]
    assert len(homes) >= len(names)
    assert [] == sorted(set(found) - set(homes))


def test_no_condition_asks_for_the_name_of_a_rule() -> None:
    """`finding.rule == "idle"` is a field of the rule that is missing."""
    found = [place for place, node in nodes_of_package() if _asks_for_a_rule(node)]
    assert [] == found


def _asks_for_a_rule(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    asks = any(isinstance(side, ast.Attribute) and side.attr == "rule" for side in sides)
    return asks and any(isinstance(side, ast.Constant | ast.Tuple | ast.Set) for side in sides)


# Where perfkit concludes, and where it writes down what it concluded.
CONCLUDING = re.compile(
    r"diagnosis/|(?:logs|dumps)/(?:\w+/)?\w*diagnosis\.py|report/(?:blocks|first_page|pages|links)\.py"
)
# The few functions that read a text, and why they may.
READERS_OF_TEXT = {
    "diagnosis/replayed.py:_refused": "an error is a text: what to record follows its first sentence",
    "diagnosis/profiling.py:messages": "the words are the collector's: no object stands behind them",
    "report/blocks.py:with_command": "summary.json holds steps as texts that end with a command",
    "report/blocks.py:_title": "the figure that a title names becomes a link, whatever it says",
    "report/pages.py:markdown": "summary.json holds the verdict as a text",
    "report/pages.py:_sections": "a cell of prose is no object: a heading begins its section",
    "report/pages.py:heading": "a cell of prose is no object: its heading is its first line",
}


def test_no_condition_reads_a_text() -> None:
    found = {f"{name}:{function}" for name, function in _readers_of_text()}
    assert set(READERS_OF_TEXT) == found


def _readers_of_text() -> Iterator[tuple[str, str]]:
    """Yield the functions, by file, that read a text where perfkit concludes."""
    for name, tree in trees(ROOT):
        if CONCLUDING.match(name):
            yield from ((name, function) for function in _reading(tree, ""))


def _reading(node: ast.AST, function: str) -> Iterator[str]:
    """Yield the innermost named function around each node that reads a text."""
    if isinstance(node, ast.FunctionDef):
        function = node.name
    if _reads_a_text(node):
        yield function
    for child in ast.iter_child_nodes(node):
        yield from _reading(child, function)


def _reads_a_text(node: ast.AST) -> bool:
    """Whether a node asks what stands in a text, how it begins or ends, or whether it is one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in PATTERNS and any(map(_is_text, node.args)):
            return True
        return node.func.attr in PARTS and _is_text(node.func.value)
    if not isinstance(node, ast.Compare):
        return False
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        return _is_text(node.comparators[0])
    sides = [node.left, *node.comparators]
    texts = [side.value for side in sides if isinstance(side, ast.Constant)]
    return any(isinstance(text, str) and text for text in texts) and any(map(_is_text, sides))


def _is_text(node: ast.AST) -> bool:
    """Whether a node is a text: by its name, by its column, or as `str` of it or its `.str`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value in TEXTS
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and node.args:
        return _is_text(node.args[0])
    if isinstance(node, ast.Attribute) and node.attr == "str":
        return _is_text(node.value)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in TEXTS


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ('"keeps the GPU idle" in title', True),
        ('finding.title.startswith("The GPU ")', True),
        ("why.endswith(FIRST_PASS)", True),
        ('gain.reason.partition(". ")', True),
        ("SLOW.search(finding.explanation)", True),
        ('label == "Main stall"', True),
        ("WIDELY in gain.reason", True),
        ('figure.unit == "1/s"', True),
        ('worst["unit"] == "frac"', True),
        ('figure.id == "unknown_frac"', True),
        ('figure_id.removeprefix("baseline_")', True),
        ('table["id"].str.startswith("part_")', True),
        ('str(row["label"]).rpartition(": ")', True),
        ('command.startswith("ncu ")', True),
        ("NUMBERED.sub('', figure.id)", True),
        ('title == ""', False),
        ('"idle_frac" in figures', False),
        ("figure.id in known", False),
        ('name.startswith("cuda")', False),
    ],
)
def test_a_condition_on_a_text_is_seen(code: str, reads: bool) -> None:
    (expression,) = ast.parse(code).body
    assert isinstance(expression, ast.Expr)
    assert reads is _reads_a_text(expression.value)


def test_a_planted_condition_is_found_with_its_function() -> None:
    planted = ast.parse('def _told(finding):\n    return finding.title.endswith("% of the time")')
    assert ["_told"] == list(_reading(planted, ""))


def test_no_theme_imports_another() -> None:
    themes = {theme.__name__ for theme in package.THEMES}
    for name, tree in trees(FOLDER):
        if name.endswith("__init__.py"):
            continue
        imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not imported & themes, name


def test_every_module_of_a_theme_is_read() -> None:
    shared = {"__init__", "advice", "changes", "longest_moments", "rule"}
    themes = {theme.__name__.rpartition(".")[2] for theme in package.THEMES}
    assert {file.stem for file in FOLDER.glob("*.py")} == themes | shared


def test_no_two_rules_share_a_name_or_a_kind() -> None:
    found = [v for theme in package.themes() for v in vars(theme).values() if isinstance(v, Rule)]
    assert len(found) == len(rules())
    for theme in package.themes():
        kinds = [v.kind for v in vars(theme).values() if isinstance(v, Rule) and v.kind]
        assert len(kinds) == len(by_kind(theme))


def test_a_constant_is_called_as_its_rule() -> None:
    for theme in package.THEMES:
        for name, value in vars(theme).items():
            assert not isinstance(value, Rule) or name == value.name.upper()


def test_every_change_can_be_replayed() -> None:
    for rule in rules().values():
        assert rule.change is None or isinstance(rule.change, Change)


def test_code_belongs_to_the_text_of_its_step() -> None:
    texts = {step.text for rule in rules().values() for step in rule.advice}
    assert snippets()
    assert set(snippets()) <= texts


def test_a_rule_finds_its_finding_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule in the module of its theme is all that a new finding takes."""

    def find(chosen: perfkit.Selection, known: Known) -> Iterator[diagnosis.Finding]:
        idle = known["idle_frac"]
        yield tell(
            added, "Something is new", "", (idle,), Gain(1.0, 1.5, "a bound"), level="medium"
        )

    added = replace(IDLE, name="something_new", find=find)
    rules.cache_clear()
    monkeypatch.setattr(package.idle, "SOMETHING_NEW", added, raising=False)
    try:
        ran = kernels({"start_ns": 0, "dur_ns": MS}, {"start_ns": 20 * MS, "dur_ns": 20 * MS})
        found = {finding.rule: finding for finding in diagnosis.findings(view(kernels=ran))}
        assert "Something is new" == found["something_new"].title
    finally:
        monkeypatch.undo()
        rules.cache_clear()
    assert "something_new" not in rules()


# Rules about the machine, the process or all of the recording, and one that finds its place itself.
WITHOUT_MOMENT = {
    "allocator_off",
    "checkpointing",
    "clock_lowered",
    "cpu_cores",
    "gpu_never_used",
    "gpu_shared",
    "gpu_unused",
    "too_little",
}


def test_a_finding_on_a_timeline_has_a_place_to_go_to() -> None:
    of_timeline = [rule for rule in rules().values() if "KERNELS" in rule.needs]
    assert {rule.name for rule in of_timeline if not rule.moment} == WITHOUT_MOMENT
