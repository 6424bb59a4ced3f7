"""Totals, functions, hot path and threads of a call tree: by hand, and against plain loops over random trees."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, PYTHON, WORKER, call_metrics, calltree, thread_metrics, threads, toy_metrics, toy_tree
from frames import tuples

from perfkit.analysis import calltree as paths
from perfkit.analysis.calltree.paths import launched
from perfkit.analysis.calltree.totals import described, nearest, parents, rows_of
from perfkit.tables import CALL_METRICS, CALLTREE, THREAD_METRICS

TREE, METRICS = toy_tree(), toy_metrics()
KINDS = ["function", "function", "line", "loop", "instruction"]
Row = dict[str, object]


def two_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """The table twice, as ranks 0 and 1."""
    table = CALLTREE if "parent" in frame else CALL_METRICS
    return table.make(pd.concat([frame, frame.assign(rank=frame["rank"] + 1)], ignore_index=True))


def test_totals_by_hand() -> None:
    """CPU time is 3 s below the main thread and 1 below the other: 0.75 and 0.25; only one of them copies."""
    # Two roots called application thread make one row of 1 + 2 = 3 s.
    found = paths.inclusive(TREE, METRICS).set_index("metric")
    columns = ["entry", "unit", "inclusive", "share_frac"]
    assert [(WORKER, "s", 1.0, 0.25), (MAIN, "s", 3.0, 0.75)] == tuples(found.loc["CPUTIME"], *columns)
    assert [(MAIN, "bytes", 8e6, 1.0)] == tuples(found.loc[["GXCOPY:H2D"]], *columns)
    tree = calltree({"node": 1, "name": WORKER}, {"node": 2, "name": WORKER})
    found = paths.inclusive(tree, call_metrics((1, "CPUTIME", "s", 1.0, 1.0), (2, "CPUTIME", "s", 2.0, 2.0)))
    assert [(WORKER, "s", 3.0, 1.0)] == tuples(found, *columns)


def test_functions_by_hand() -> None:
    """mm takes 2 s itself, the line in train 1 s (which is train's), backward 0.75 and the worker's root 0.25: 4 s."""
    # `forward` of two classes in one file is two functions; of one class, called from two places, it is one.
    found = paths.exclusive(TREE, METRICS, metric="CPUTIME")
    assert [
        ("at::mm(at::Tensor)", "function", 2.0, 0.5, 1),
        ("train", "function", 1.0, 0.25, 1),
        ("backward()", "function", 0.75, 0.1875, 1),
        (WORKER, "entry", 0.25, 0.0625, 1),
    ] == tuples(found, "name", "kind", "exclusive", "share_frac", "count")
    assert {PYTHON, "/lib/libtorch.so"} == set(found["module"].dropna())
    place = {"name": "forward", "module": PYTHON, "file": "net.py"}
    lines = ({"node": node, "parent": 1, "line": line, **place} for node, line in ((2, 10), (3, 10), (4, 90)))
    metrics = call_metrics((1, "CPUTIME", "s", 6.0, 0.0), *((n, "CPUTIME", "s", 2.0, 2.0) for n in (2, 3, 4)))
    found = paths.exclusive(calltree({"node": 1, "name": MAIN}, *lines), metrics, metric="CPUTIME")
    assert [(10, 4.0, 2), (90, 2.0, 1)] == tuples(found, "line", "exclusive", "count")


def test_hot_path_by_hand() -> None:
    """2 of the GPU's 3 ms are below main > train > mm; its kernel and its copy have half each: the first is taken."""
    # No child of mm has 0.6 of its 2 ms; with nothing demanded the path goes down to the last context. From the
    # worker's root it goes to its own kernel, though the main thread has more.
    found = paths.hot_path(TREE, METRICS, metric="GPUOP")
    assert [
        (0, 1, "entry", MAIN, "s", 1.0),
        (1, 2, "function", "train", "s", 1.0),
        (2, 3, "line", "train.py:12", "s", 1.0),
        (3, 4, "function", "at::mm(at::Tensor)", "s", 1.0),
        (4, 5, "gpu_operation", "<gpu kernel>", "s", 0.5),
    ] == tuples(found, "depth", "node", "kind", "name", "unit", "share_frac")
    for metric, more, nodes in (
        ("GPUOP", {"at_least": 0.6}, [1, 2, 3, 4]),
        ("GPUOP", {"at_least": 0.0}, [1, 2, 3, 4, 5]),
        ("CPUTIME", {}, [1, 2, 3, 4]),
        ("GKER", {"entry": WORKER}, [10, 11, 12]),
    ):
        assert nodes == paths.hot_path(TREE, METRICS, metric=metric, **more)["node"].tolist()


def test_threads_by_hand() -> None:
    """Values 6 and 2: shares 0.75 and 0.25, mean 4, so 1.5 times the mean is the imbalance; the idle one counts not."""
    # A thread of a profile without metrics has the value 0 and no share.
    who = threads((1, "cpu", "thread 0"), (2, "cpu", "thread 1"), (3, "cpu", "thread 2"))
    did = [(1, WORKER, "CPUTIME", "s", 2.0), (2, MAIN, "CPUTIME", "s", 5.0), (2, WORKER, "CPUTIME", "s", 1.0)]
    found = paths.threads(who, thread_metrics(*did), metric="CPUTIME")
    assert [(2, MAIN, 6.0, 0.75, 1.5), (1, WORKER, 2.0, 0.25, 0.5)] == tuples(
        found[:2], "thread", "entry", "value", "share_frac", "times_mean"
    )
    assert [3, 0.0, 0.0] == found.loc[2, ["thread", "value", "times_mean"]].tolist()
    found = paths.threads(threads((1, "cpu", "a")), THREAD_METRICS.empty(), metric="GKER")
    assert [0.0] == found["value"].tolist()
    assert found[["share_frac", "times_mean"]].isna().all(axis=None)


def test_a_second_rank_changes_nothing_in_the_first() -> None:
    """The same nodes in two ranks are two programs: each rank's figures are those of one alone."""
    # The analyses leave the tables as they were.
    pair, kept = (two_ranks(TREE), two_ranks(METRICS)), (two_ranks(TREE), two_ranks(METRICS))
    for of in (paths.inclusive, functools.partial(paths.exclusive, metric="GPUOP"), paths.gpu_summary):
        once, twice = of(TREE, METRICS), of(*pair)
        for rank in (0, 1):
            one = twice[twice["rank"] == rank].assign(rank=0).astype({"rank": "int32"}).reset_index(drop=True)
            pd.testing.assert_frame_equal(once, one, check_categorical=False)
    paths.kernels(*pair)
    for before, after in zip(kept, pair, strict=True):
        pd.testing.assert_frame_equal(before, after)


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
    contexts: Counter[tuple[str, str]] = Counter()
    for node, value in own.items():
        kinds = ((row, row.get("kind", "function" if "parent" in row else "entry")) for row in climbed(rows, node))
        row = next(row for row, kind in kinds if kind in ("function", "entry", "gpu_operation"))
        wanted[str(row["name"]), str(row.get("module"))] += value
        contexts[str(row["name"]), str(row.get("module"))] += value > 0
    found = paths.exclusive(calltree(*rows), metrics_of(rows, own), metric="CPUTIME").fillna({"module": "None"})
    assert {(*key, value, contexts[key]) for key, value in wanted.items() if value} == {
        *tuples(found, "name", "module", "exclusive", "count")
    }


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
    found = launched(calltree(*rows), metrics_of(rows, kernels, "GKER"))
    seen: Counter[tuple[str, str]] = Counter()
    for each in found.to_dict("records"):
        function = "" if pd.isna(each["function"]) else each["function"]
        python = "" if pd.isna(each["file"]) else f"{each['file']}:{each['line']} {function}".strip()
        seen[each["full_name"], python] += each["total_ns"]
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
    pd.testing.assert_frame_equal(paths.exclusive(*one, metric="CPUTIME"), paths.exclusive(*other, metric="CPUTIME"))
    pd.testing.assert_frame_equal(paths.inclusive(*one), paths.inclusive(*other))


def test_contexts_that_are_not_there() -> None:
    """A node of another rank, below the lowest or above the highest number has no row."""
    # Where no context is wanted there is none; where all are, each is its own. A tree that is none neither hangs nor
    # finds an enclosing context that is not there.
    tree = calltree(
        {"node": 5, "name": MAIN}, {"node": 7, "parent": 5, "name": "f"}, {"node": 9, "parent": 8, "name": "g"}
    )
    rank = np.array([0, 0, 0, 0, 1, -1, 0])
    assert [0, 1, -1, -1, -1, -1, -1] == rows_of(tree, rank, np.array([5, 7, 6, 4, 5, 7, 2**40])).tolist()
    assert [-1, 0, -1] == parents(tree).tolist()
    for wanted, expected in ((np.zeros(10, bool), [-1] * 10), (np.ones(10, bool), [*range(10)])):
        assert expected == nearest(np.arange(-1, 9), wanted).tolist()
    assert [] == nearest(np.zeros(0, np.int64), np.zeros(0, bool)).tolist()
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
