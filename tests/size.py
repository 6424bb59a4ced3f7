"""Print how much there is to read: `python -m tests.size [FOLDER ...]`, perfkit, its packages and tests by default.

Tokens are the names, operators, numbers and strings of `tokenize`, without docstrings. A code line has such a token.
Floors are the modules on the longest chain of imports within a folder. A circle is a set of modules that import each
other, at their top or inside of functions; imports for types alone do not count.
"""

import ast
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "perfkit"
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
WIDE = 100  # columns
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Size:
    """What a file, or several, hold."""

    files: int
    lines: int
    tokens: int
    code_lines: int
    wide: int
    conditional: int
    nested: int

    def __add__(self, other: "Size") -> "Size":
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Size(*(mine + theirs for mine, theirs in both))


@cache
def size(file: Path) -> Size:
    """Return the counts of one file."""
    text = file.read_text(encoding="utf-8")
    nodes = [*ast.walk(ast.parse(text))]
    skipped = docstrings(nodes)
    with tokenize.open(file) as source:
        tokens = [
            token for token in tokenize.generate_tokens(source.readline) if token.type in COUNTED
        ]
    counted = [token for token in tokens if token.start not in skipped]
    lines = text.splitlines()
    return Size(
        files=1,
        lines=len(lines),
        tokens=len(counted),
        code_lines=len({token.start[0] for token in counted}),
        wide=sum(len(line) > WIDE for line in lines),
        conditional=sum(isinstance(node, ast.IfExp) for node in nodes),
        nested=sum(is_nested(node) for node in nodes),
    )


def docstrings(nodes: Iterable[ast.AST]) -> set[tuple[int, int]]:
    """Return where the docstrings of a module start."""
    holders = [node for node in nodes if isinstance(node, DOCUMENTED)]
    first = [holder.body[0] for holder in holders if holder.body]
    texts = [node.value for node in first if isinstance(node, ast.Expr)]
    return {(text.lineno, text.col_offset) for text in texts if isinstance(text, ast.Constant)}


def is_nested(node: ast.AST) -> bool:
    """Say whether a node is a comprehension with two `for`, or with another one inside."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    inside = [
        inner for inner in ast.walk(node) if inner is not node and isinstance(inner, COMPREHENSIONS)
    ]
    return len(node.generators) > 1 or bool(inside)


@cache
def imports() -> Graph:
    """Return which modules of perfkit each module imports."""
    files = {_module(file): file for file in sorted((ROOT / PACKAGE).rglob("*.py"))}
    return {
        name: {found for found in _imported(file, set(files)) if found != name}
        for name, file in files.items()
    }


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _imported(file: Path, modules: set[str]) -> Iterator[str]:
    """Yield the modules that a file imports; of a name that a module defines, the module."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            home = name if name in modules else name.rpartition(".")[0]
            if home in modules:
                yield home


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all inside it, without what is for types alone."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield from _executed(child)


def within(folder: str) -> Graph:
    """Return the imports among the modules of a folder, such as "perfkit.report"."""
    members = {name for name in imports() if name == folder or name.startswith(f"{folder}.")}
    return {name: imports()[name] & members for name in members}


def circles(graph: Graph) -> list[list[str]]:
    """Return the sets of modules that import each other.

    >>> circles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    [['a', 'b']]
    """
    reached = {name: _reached(graph, name) for name in graph}
    sets = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(members) for members in sets if members)


def _reached(graph: Graph, start: str) -> set[str]:
    """Return what a module imports, directly or through others."""
    reached: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


def longest(graph: Graph) -> list[str]:
    """Return the longest chain of imports, from the top down; a circle counts as one module.

    >>> longest({"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": {"c"}})
    ['a', 'b', 'c+d']
    """
    names = {name: name for name in graph}
    for members in circles(graph):
        names |= dict.fromkeys(members, "+".join(members))
    whole: dict[str, set[str]] = {name: set() for name in names.values()}
    for name, imported in graph.items():
        whole[names[name]] |= {names[other] for other in imported} - {names[name]}
    below: dict[str, list[str]] = {}
    for name in TopologicalSorter(whole).static_order():
        chains = [below[other] for other in sorted(whole[name])]
        below[name] = [name, *max(chains, key=len, default=[])]
    return max(below.values(), key=len, default=[])


def told(folder: Path) -> str:
    """Return the line of a folder."""
    sizes = [size(file) for file in sorted(folder.rglob("*.py"))]
    whole = sum(sizes[1:], sizes[0])
    thousand = whole.code_lines / 1000
    line = (
        f"{folder}: {whole.files} files, {whole.lines:,} lines, {whole.tokens:,} tokens, "
        f"{whole.tokens / whole.code_lines:.1f} a code line, {100 * whole.wide / whole.lines:.1f} % over {WIDE} "
        f"columns; per 1,000 code lines {whole.conditional / thousand:.0f} conditional expressions, "
        f"{whole.nested / thousand:.0f} nested comprehensions"
    )
    name = ".".join(folder.parts)
    if name not in imports():
        return line
    graph = within(name)
    found = [", ".join(members) for members in circles(graph)]
    return f"{line}; {len(longest(graph))} floors, {len(found)} circles{': ' if found else ''}{'; '.join(found)}"


def main(folders: list[Path]) -> None:
    """Print a line for each folder, and the longest chain of all imports."""
    packages = [
        path for path in sorted(Path(PACKAGE).iterdir()) if (path / "__init__.py").is_file()
    ]
    lines = [told(folder) for folder in folders or [Path(PACKAGE), *packages, Path("tests")]]
    chain = longest(imports())
    lines.append(f"longest chain of imports, {len(chain)} modules: {' > '.join(chain)}")
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
