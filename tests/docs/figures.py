"""All figures that perfkit can show, each with label, unit, definition and source.

Two ways lead to them. Runs of the samples show figures whose ids perfkit puts together. The code
shows all others: the calls of `Figure` in `perfkit/` are read, but not run. There, a part of an
id that perfkit fills in is `*`, and a part of a text is `...`.
"""

import ast
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dumps.dump_files import entry, job, pickled, snapshot, steps
from megatron import training
from planted.causes import planted
from planted.test_causes import run as planted_run
from readers.inspector_files import job as inspected
from readers.nccl_files import rows, table, written

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.rules import rules
from perfkit.report.notebooks import sample
from perfkit.run import Run

PACKAGE = Path(perfkit.__file__).parent
SAMPLES = ("bert_a100", "dlrm_h100", "gpu_workloads/bert_training")
PLANTED = ("checkpoints", "small copies", "throttling", "imbalance", "occupancy")
OF_A_GPU = re.compile(r"_\d+_\d+_")  # rank and GPU
FIELDS = ("id", "label", "value", "unit", "definition", "source")
UNIT = re.compile(r"_(frac|count|ratio|ns|bytes|bytes_per_s|flops_per_s)$")
WORD = re.compile(r"[a-z]{3}")
GAP = "..."
WITHOUT = ("report", "widgets", "charts")  # show figures, and make none


class Described(NamedTuple):
    """What a page says about a figure."""

    id: str
    label: str
    unit: str
    definition: str
    source: str


def figures() -> list[Described]:
    """Return all figures by their ids."""
    shown = {figure.id: figure for figure in _of_runs()}
    shown |= {figure.id: figure for figure in _of_rules() if figure.id not in shown}
    wanted = {id for rule in rules().values() for id in rule.evidence}
    # A pattern stands for figures that nothing names in full.
    for figure in sorted(_of_code(), key=lambda figure: "*" in figure.id):
        known = [id for id in shown if fnmatchcase(id, figure.id)]
        lacking = [id for id in wanted - set(shown) if fnmatchcase(id, figure.id)]
        if lacking or not known:
            shown.setdefault(figure.id, figure)
    return sorted(shown.values())


def heading(id: str, ids: Collection[str]) -> str:
    """Return the id whose heading describes a figure or a pattern of figures; empty if none does."""
    if id in ids:
        return id
    fits = [each for each in ids if fnmatchcase(id, each) or fnmatchcase(each, id)]
    return min(fits, key=len, default="")


def _of_rules() -> Iterator[Described]:
    """Yield the figures that rules describe themselves: of causes that one analysis tells apart."""
    for rule in rules().values():
        if rule.definition:
            yield Described(rule.evidence[0], rule.label, rule.unit, rule.definition, "")


def _of_runs() -> Iterator[Described]:
    """Yield the figures of the samples, and of programs with a known cause of lost time."""
    for run in _runs():
        known = list(diagnosis.figures(run).values())
        for finding in diagnosis.findings(run):
            known += finding.evidence
        for figure in known:
            general = OF_A_GPU.sub("_RANK_GPU_", figure.id)
            yield Described(general, figure.label, figure.unit, figure.definition, figure.source)


def _runs() -> Iterator[Run]:
    # The first runs have the plainest texts: a later figure with the same id replaces an earlier one.
    for cause in PLANTED:
        yield planted_run(planted(cause))
    with TemporaryDirectory() as folder:
        written(Path(folder, "all_gather.txt"), table(inner=rows() * 4, ranks=2))
        training(Path(folder, "train.log"), gpus=2, ms=500)
        yield perfkit.load(folder)
    with TemporaryDirectory() as folder:
        yield perfkit.load(job(Path(folder, "dumps"), [entry(1), entry(2)], [entry(1)]))
        yield perfkit.load(inspected(Path(folder, "inspector"), [300] * 3, [900] * 3))
        refused = snapshot(steps(keeps=1 << 24), refused=1 << 30)
        yield perfkit.load(pickled(Path(folder, "run.pickle"), refused, 4))
    for name in SAMPLES:
        yield perfkit.load(sample(name))


def _of_code() -> Iterator[Described]:
    files = [file for file in PACKAGE.rglob("*.py") if file.parent.name not in WITHOUT]
    for file in sorted(files):
        module = ast.parse(file.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            yield from _of_function(function, _texts(module.body))


def _of_function(function: ast.FunctionDef, known: dict[str, str]) -> Iterator[Described]:
    """Yield the figures that a function makes; `known` are the texts of names in its module."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    for call in calls:
        if not isinstance(call.func, ast.Name) or call.func.id != "Figure":
            continue
        before = [node for node in ast.walk(function) if _line(node) < call.lineno]
        texts = known | _texts(before)
        for arguments in _arguments(call, function):
            fields = {
                name: _text(node, texts) for name, node in zip(FIELDS, arguments, strict=False)
            }
            pattern = fields.get("id", "").replace(GAP, "*")
            texts_of = [fields.get(name, "") for name in Described._fields[1:]]
            if UNIT.sub("", pattern).strip("*_") and WORD.search(" ".join(texts_of[:3])):
                yield Described(pattern, *texts_of)


def _arguments(call: ast.Call, function: ast.FunctionDef) -> list[list[ast.expr]]:
    """Return the arguments of a call; of `Figure(*each, ...)` those with each tuple that fits."""
    first, *rest = call.args
    if not isinstance(first, ast.Starred):
        return [call.args]
    tuples = [node for node in ast.walk(function) if isinstance(node, ast.Tuple)]
    rest = [part for node in rest for part in _unpacked(node)]
    fitting = [node.elts for node in tuples if len(node.elts) + len(rest) == len(FIELDS)]
    return [[*parts, *rest] for parts in fitting if UNIT.search(_text(parts[0], {}))]


def _unpacked(node: ast.expr) -> list[ast.expr]:
    """Return the parts of `*(a, b)`, or the expression itself."""
    if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple):
        return node.value.elts
    return [node]


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 1 << 30))


def _texts(nodes: list[ast.stmt] | list[ast.AST]) -> dict[str, str]:
    """Return the text that each name has last, of those that are assigned a text."""
    texts: dict[str, str] = {}
    assignments = [node for node in nodes if isinstance(node, ast.Assign | ast.AugAssign)]
    for node in sorted(assignments, key=_line):
        for name, value in _pairs(node):
            text = _text(value, texts)
            if isinstance(node, ast.AugAssign):
                text = texts.get(name, "") + text
            if text:
                texts[name] = text
    return texts


def _pairs(node: ast.Assign | ast.AugAssign) -> Iterator[tuple[str, ast.expr]]:
    """Yield names and values of `a = x`, of `a += x` and of `a, b = x, y`."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    value = node.value
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, each in zip(target.elts, value.elts, strict=False):
            if isinstance(name, ast.Name):
                yield name.id, each


def _text(node: ast.AST, texts: dict[str, str]) -> str:
    """Return the text of an expression, with GAP for what only a run knows; empty if it is no text."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(_text(value, texts) or GAP for value in values)
        case ast.FormattedValue(value=value):
            return _text(value, texts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, texts) + _text(right, texts)
        case ast.IfExp(body=body):
            return _text(body, texts)
        case ast.Name(id=name):
            return texts.get(name, "")
    return ""
