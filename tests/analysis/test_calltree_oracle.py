"""Call-tree analyses against plain loops over random trees, and on a tree of 5,000 levels."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, PYTHON, WORKER, call_metrics, calltree

from perfkit.analysis import calltree as paths
from perfkit.analysis.calltree.totals import described, nearest, parents, rows_of

KINDS = ["function", "function", "line", "loop", "instruction"]
Row = dict[str, object]


def random_tree(seed: int, size: int = 400) -> tuple[list[Row], dict[int, float]]:
    """Rows of a tree with two roots in which every tenth leaf is a kernel, and each context's own value."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = [{"node": 1, "name": MAIN}, {"node": 2, "name": WORKER}]
    for node in range(3, size):
        kind = str(rng.choice(KINDS))
        name = f"f{rng.integers(12)}" if kind == "function" else f"{kind}{node}"
        module = PYTHON if kind == "function" and rng.random() < 0.3 else "lib.so"
        file = f"m{rng.integers(4)}.py" if kind == "line" and rng.random() < 0.5 else f"a{rng.integers(4)}.c"
        rows.append({"node": node, "parent": int(rng.integers(1, node)), "name": name, "kind": kind, "module": module})
        rows[-1] |= {"file": file, "line": int(rng.integers(1, 99))} if kind == "line" else {}
    for i in range(40):
        above = int(rng.integers(3, size))
        rows.append({"node": size + 2 * i, "parent": above, "name": "<gpu kernel>", "kind": "gpu_operation"})
        rows.append({"node": size + 2 * i + 1, "parent": size + 2 * i, "name": f"k{rng.integers(9)}"})
    own = {int(str(row["node"])): float(rng.integers(0, 5)) for row in rows if row["name"] != "<gpu kernel>"}
    return rows, own


def climbed(rows: list[Row], node: object) -> list[Row]:
    """The context and all that enclose it, nearest first."""
    by_node, way = {row["node"]: row for row in rows}, []
    while node is not None:
        way.append(by_node[node])
        node = by_node[node].get("parent")
    return way


def summed(rows: list[Row], own: dict[int, float]) -> dict[int, float]:
    """Inclusive values: each context's own value counted for all that enclose it."""
    total: Counter[int] = Counter()
    for node, value in own.items():
        for row in climbed(rows, node):
            total[int(str(row["node"]))] += value
    return total


def metrics_of(rows: list[Row], own: dict[int, float], metric: str = "CPUTIME") -> pd.DataFrame:
    """CALL_METRICS of one metric."""
    total = summed(rows, own)
    return call_metrics(*((node, metric, "s", value, own.get(node, 0.0)) for node, value in total.items()))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_functions_equal_a_loop(seed: int) -> None:
    """Each context's own value counts to the function, operation or entry met first on the way up."""
    rows, own = random_tree(seed)
    wanted: Counter[tuple[str, str]] = Counter()
    for node, value in own.items():
        kinds = ((row, row.get("kind", "function" if "parent" in row else "entry")) for row in climbed(rows, node))
        row = next(row for row, kind in kinds if kind in ("function", "entry", "gpu_operation"))
        wanted[str(row["name"]), str(row.get("module"))] += value
    found = paths.exclusive(calltree(*rows), metrics_of(rows, own), metric="CPUTIME")
    keys = zip(found["name"], found["module"].fillna("None"), strict=True)
    assert {key: value for key, value in wanted.items() if value} == dict(zip(keys, found["exclusive"], strict=True))


@pytest.mark.parametrize("seed", [4, 5])
def test_hot_path_equals_a_loop(seed: int) -> None:
    """From the larger root always into the largest child, the first of equals, while it has 0.3 of its parent."""
    rows, own = random_tree(seed)
    total = summed(rows, own)
    wanted = [max((1, 2), key=lambda node: total[node])]
    while True:
        below = [int(str(row["node"])) for row in rows if row.get("parent") == wanted[-1]]
        child = max(below, key=lambda node: (total[node], -node), default=0)
        if not child or total[child] < 0.3 * total[wanted[-1]]:
            break
        wanted.append(child)
    found = paths.hot_path(calltree(*rows), metrics_of(rows, own), metric="CPUTIME", at_least=0.3)
    assert wanted == found["node"].tolist()


@pytest.mark.parametrize("seed", [6, 7, 8])
def test_kernels_and_their_python_lines_equal_a_loop(seed: int) -> None:
    """Time per kernel and Python line, the line being the first on the way up that is Python's."""
    rows, own = random_tree(seed)
    wanted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if str(row["name"])[0] == "k" and own[int(str(row["node"]))]:
            way = climbed(rows, row["node"])
            line = next((place(way[i:]) for i in range(len(way)) if place(way[i:])), "")
            wanted[str(row["name"]), line] += own[int(str(row["node"]))] * 1e9
    kernels = {node: value for node, value in own.items() if str(climbed(rows, node)[0]["name"])[0] == "k"}
    found = paths.launch_sites(calltree(*rows), metrics_of(rows, kernels, "GKER"))
    seen: Counter[tuple[str, str]] = Counter()
    for each in found.to_dict("records"):
        seen[each["name"], "" if pd.isna(each["python"]) else each["python"]] += each["total_ns"]
    assert wanted == seen


def place(way: list[Row]) -> str:
    """The text of a Python line that stands first on the way, with its function; empty if none does."""
    row = way[0]
    if row.get("kind") != "line":
        return ""
    inside = next(up for up in way if "parent" not in up or up.get("kind", "function") in ("function", "gpu_operation"))
    function = str(inside["name"]) if inside.get("module") == PYTHON and "parent" in inside else ""
    python = function or str(row.get("file", "")).endswith(".py")
    return f"{row['file']}:{row['line']} {function}".strip() if python else ""


@pytest.mark.parametrize("seed", [9, 10])
def test_the_order_of_numbers_does_not_matter(seed: int) -> None:
    """Contexts numbered at random, and far apart, have the same functions and kernels."""
    rows, own = random_tree(seed, 100)
    numbers = np.random.default_rng(seed).permutation(2_000_000_000 // 1000)[: len(rows) + 200] * 1000
    renamed = [
        row | {key: int(numbers[int(str(row[key]))]) for key in ("node", "parent") if key in row} for row in rows
    ]
    new = {int(numbers[node]): value for node, value in own.items()}
    one, other = (calltree(*rows), metrics_of(rows, own)), (calltree(*renamed), metrics_of(renamed, new))
    for by in ("function", "file"):
        pd.testing.assert_frame_equal(
            paths.exclusive(*one, metric="CPUTIME", by=by), paths.exclusive(*other, metric="CPUTIME", by=by)
        )
    pd.testing.assert_frame_equal(paths.inclusive(*one), paths.inclusive(*other))


def test_rows_of_contexts_that_are_not_there() -> None:
    """A node of another rank, below the lowest or above the highest number has no row."""
    tree = calltree(
        {"node": 5, "name": MAIN}, {"node": 7, "parent": 5, "name": "f"}, {"node": 9, "parent": 8, "name": "g"}
    )
    rank = np.array([0, 0, 0, 0, 1, -1, 0])
    assert [0, 1, -1, -1, -1, -1, -1] == rows_of(tree, rank, np.array([5, 7, 6, 4, 5, 7, 2**40])).tolist()
    assert [-1, 0, -1] == parents(tree).tolist()


def test_nearest_of_nothing_wanted() -> None:
    """Where no context is wanted there is none; where all are, each is its own."""
    parent = np.arange(-1, 9)
    assert [-1] * 10 == nearest(parent, np.zeros(10, bool)).tolist()
    assert list(range(10)) == nearest(parent, np.ones(10, bool)).tolist()
    assert [] == nearest(np.zeros(0, np.int64), np.zeros(0, bool)).tolist()


def test_contexts_that_enclose_each_other() -> None:
    """A tree that is none neither hangs nor finds an enclosing context that is not there."""
    parent = np.array([1, 0, 1])
    assert [-1, -1, 2] == nearest(parent, np.array([False, False, True])).tolist()
    tree = calltree(
        {"node": 1, "name": MAIN}, {"node": 2, "parent": 1, "name": "f"}, {"node": 3, "parent": 2, "name": "g"}
    )
    assert ["f > main thread > f > g"] == described(tree, parent, np.array([2]), ["g"])


def test_a_tree_of_5000_levels() -> None:
    """Below 5,000 functions, the first of them Python, a kernel has its whole path and the line at the top."""
    depth = 5000
    rows: list[Row] = [
        {"node": 1, "name": MAIN},
        {"node": 2, "parent": 1, "name": "train", "module": PYTHON},
        {"node": 3, "parent": 2, "name": "train.py:5", "kind": "line", "file": "/x/train.py", "line": 5},
        *({"node": node, "parent": node - 1, "name": f"f{node}"} for node in range(4, depth + 4)),
        {"node": depth + 4, "parent": depth + 3, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": depth + 5, "parent": depth + 4, "name": "k"},
    ]
    tree = calltree(*rows)
    metrics = call_metrics(*((n, "GKER", "s", 1.0, float(n == depth + 5)) for n in range(1, depth + 6)))
    (row,) = paths.kernels(tree, metrics).to_dict("records")
    assert ("train.py:5 train", f"f{depth + 3}") == (row["python"], row["site"])
    steps = row["path"].split(" > ")
    assert (depth + 3, MAIN, "train", "f4", "k") == (len(steps), *steps[:3], steps[-1])
    assert depth + 5 == len(paths.hot_path(tree, metrics, metric="GKER"))
    assert ["k"] == paths.exclusive(tree, metrics, metric="GKER")["name"].tolist()
