"""List answers of several students that have the same code, without names of variables, comments and layout.

The list accuses nobody: short answers look alike, and so do answers that a text or a lecture shows. A person compares.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

LEAST_NODES = 30  # of a tree of code: shorter answers leave no choice
COMMON_FRAC = 0.2  # of the students; what more of them write is the usual way


class _Plain(ast.NodeTransformer):
    """Gives the names of a function's own variables numbers, and takes its texts of description away."""

    def __init__(self, own: Iterable[str]) -> None:
        self.numbers = {name: f"v{number}" for number, name in enumerate(own)}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Return the name, or its number."""
        return ast.Name(self.numbers.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Return an argument without its type."""
        return ast.arg(self.numbers.get(node.arg, node.arg))

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Leave out texts that do nothing."""
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)


def normal(source: str) -> str:
    """Return the code of an answer in a form that does not depend on names, comments and layout.

    The result is empty for an answer that is too short to tell anything, or no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if sum(1 for _ in ast.walk(tree)) < LEAST_NODES:
        return ""
    own = dict.fromkeys(_own_names(tree))
    return ast.dump(_Plain(own).visit(tree))


def _own_names(tree: ast.AST) -> list[str]:
    """Return the names that the code assigns, in the order of the tree."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
    return names


def groups(
    answers: dict[tuple[str, str], dict[str, str]], usual: dict[tuple[str, str], str]
) -> list[dict[str, Any]]:
    """Return who wrote the same code for a task.

    `answers` maps a notebook and a task to each student's code, `usual` to the instructor's solution.
    """
    rows = []
    for (notebook, task), codes in answers.items():
        same: dict[str, list[str]] = defaultdict(list)
        for student, code in codes.items():
            same[normal(code)].append(student)
        unusual = {"", normal(usual[notebook, task])}
        for code, students in same.items():
            is_common = len(students) > max(2, COMMON_FRAC * len(codes))
            if code not in unusual and len(students) > 1 and not is_common:
                rows.append({"notebook": notebook, "task": task, "students": " ".join(students)})
    return rows
