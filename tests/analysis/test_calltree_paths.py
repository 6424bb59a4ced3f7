"""Kernels in a call tree: their time, their stalls, and from where they were launched."""

import numpy as np
import pandas as pd
import pytest
from callpaths import (
    MAIN,
    PYTHON,
    WORKER,
    call_metrics,
    calltree,
    thread_metrics,
    threads,
    toy_metrics,
    toy_tree,
)
from frames import tuples

from perfkit.analysis import calltree as paths
from perfkit.analysis.calltree.paths import launched
from perfkit.analysis.calltree.totals import described, nearest
from perfkit.analysis.dossier import call_paths
from perfkit.errors import PerfkitError
from perfkit.tables import CALL_METRICS, CALLTREE, STALLS, THREAD_METRICS

TREE, METRICS = toy_tree(), toy_metrics()
KERNEL = "sgemm(float*)"


def stalls(*rows: tuple[int, str, float]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["node", "reason", "value"])
    return STALLS.make(frame.assign(rank=0, launch=-1))


def with_a_line() -> pd.DataFrame:
    """The toy program's tree with a line, node 8, in the main thread's kernel."""
    line = calltree(
        {"node": 6, "name": MAIN}, {"node": 8, "parent": 6, "name": "a.cu:3", "kind": "line"}
    )[1:]
    return CALLTREE.make(pd.concat([TREE.astype(object), line.astype(object)], ignore_index=True))


def launching(*above: dict[str, object]) -> pd.DataFrame:
    """A main thread, one context below the other as given (nodes 2, 3, ...), and at their end the kernel k."""
    rows = [{"node": 2 + i, "parent": 1 + i, **row} for i, row in enumerate(above)]
    last = 2 + len(rows)
    return calltree(
        {"node": 1, "name": MAIN},
        *rows,
        {"node": last, "parent": last - 1, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": last + 1, "parent": last, "name": "k"},
    )


def test_kernels_by_hand() -> None:
    # With 1 ms each the main thread's launch site comes first; with 3 ms of the 4 the worker's does.
    columns = ["name", "full_name", "family", "launch_count", "total_ns", "mean_ns", "share_frac"]
    more = METRICS.assign(exclusive=METRICS["exclusive"].where(METRICS["node"].ne(12), 0.003))
    first, second = paths.kernels(TREE, METRICS), paths.kernels(TREE, more)
    assert [(KERNEL, KERNEL, "gemm", 200.0, 2e6, 1e4, 1.0)] == tuples(first, *columns)
    assert first["main_stall"].isna().all()
    site = "main thread > train > at::mm > sgemm(float*)", "at::mm", "train.py:12 train"
    assert [site] == tuples(first, "path", "site", "python")
    site = 4e6, "application thread > backward > sgemm(float*)", "backward"
    assert [site] == tuples(second, "total_ns", "path", "site")
    assert second["python"].isna().all()


def test_time_at_the_kernel_itself_and_without_a_name() -> None:
    # A placeholder without kernels, and what one with two has beside them, is called <gpu kernel>. A kernel that no
    # metric has is left out where others have one, and kept where nothing was measured.
    measured = ("GKER", "s", 0.5), ("GKER:COUNT", "count", 5.0)
    spent = ((node, *of, of[-1] * (node == 4)) for of in measured for node in range(1, 5))
    found = paths.kernels(launching({"name": "f"}), call_metrics(*spent))
    assert [("k", 5e8, 5.0)] == tuples(found, "name", "total_ns", "launch_count")
    kernel = {"name": "<gpu kernel>", "kind": "gpu_operation"}
    tree = calltree(
        {"node": 1, "name": MAIN},
        *({"node": node, "parent": 1, **kernel} for node in (2, 3)),
        *({"node": node, "parent": 3, "name": name} for node, name in ((4, "a"), (5, "b"))),
    )
    own = {2: 1.0, 3: 2.0, 4: 4.0, 5: 5.0}
    below = ((n, "GKER", "s", 11.0 if n == 3 else value, value) for n, value in own.items())
    found = paths.kernels(tree, call_metrics((1, "GKER", "s", 12.0, 0.0), *below))
    assert [("b", 5e9), ("a", 4e9), ("<gpu kernel>", 3e9)] == tuples(found, "full_name", "total_ns")
    assert pytest.approx(1.0, rel=1e-12) == found["share_frac"].sum()
    assert found["launch_count"].isna().all()
    assert [1e6] == paths.kernels(TREE, METRICS[~METRICS["node"].isin([12, 13])])[
        "total_ns"
    ].tolist()
    assert [KERNEL] == paths.kernels(TREE, CALL_METRICS.empty())["name"].tolist()


def test_python_line_and_operator() -> None:
    # A line right below the entry point is module-level code, of no function. Without an operator the site is the
    # function above the launch, not cudaLaunchKernel or nvcc's stub.
    cpu, nothing = {"module": "/lib/libtorch_cpu.so"}, CALL_METRICS.empty()
    tree = launching(
        {"name": "sgd", "module": PYTHON, "file": "/x/sgd.py", "line": 400},
        {"name": "sgd.py:446", "kind": "line", "file": "/x/sgd.py", "line": 446},
        {"name": "add_", "module": PYTHON},
        {"name": "at::_ops::add__Tensor::call(at::Tensor&) [libtorch_cpu.so]", **cpu},
        {"name": "[libtorch_cpu.so]:0", "kind": "line"},
        {"name": "at::_ops::add__Tensor::redispatch(at::Tensor&)", **cpu},
        {
            "name": "at::native::gpu_kernel<F>(at::TensorIteratorBase&)",
            "module": "/lib/libtorch_cuda.so",
        },
    )
    columns = ["function", "file", "line", "site"]
    assert [("sgd", "/x/sgd.py", 446, "at::_ops::add__Tensor")] == tuples(
        launched(tree, nothing), *columns
    )
    path = "add_ > at::_ops::add__Tensor::call > at::_ops::add__Tensor::redispatch > at::native::gpu_kernel > k"
    found = paths.kernels(tree, nothing)
    assert [("sgd.py:446 sgd", f"main thread > sgd > {path}")] == tuples(found, "python", "path")
    tree = launching({"name": "run.py:7", "kind": "line", "file": "/x/run.py", "line": 7})
    found = launched(tree, nothing)
    assert [("/x/run.py", 7)] == tuples(found, "file", "line")
    assert found["function"].isna().all()
    assert ["run.py:7"] == paths.kernels(tree, nothing)["python"].tolist()
    names = ("work(int)", "__device_stub__Z1kv()", "cudaLaunchKernel<char>", "cuLaunch")
    assert ["work"] == launched(launching(*({"name": name} for name in names)), nothing)[
        "site"
    ].tolist()


def test_stalls_by_hand() -> None:
    # Node 8 is a line of sgemm: 30 + 10 of gmem and 60 of sync are 40 and 60 %; node 4 lies outside of kernels.
    tree = with_a_line()
    samples = stalls((6, "gmem", 6.0), (8, "idep", 3.0), (13, "idep", 5.0), (4, "ifet", 99.0))
    (row,) = paths.kernels(tree, METRICS, samples).to_dict("records")
    assert "idep" == row["main_stall"]
    assert pytest.approx(8 / 14, rel=1e-12) == row["main_stall_frac"]
    (row,) = paths.kernels(tree, METRICS, stalls((6, "hid", 9.0), (6, "gmem", 1.0))).to_dict(
        "records"
    )
    assert ("gmem", 0.1) == (row["main_stall"], row["main_stall_frac"])
    samples = stalls((6, "gmem", 30), (8, "gmem", 10), (13, "sync", 60), (4, "gmem", 5))
    found = paths.kernel_stalls(tree, METRICS, samples).drop(columns="full_name")
    assert [[KERNEL, "sync", 60.0, 0.6, 1], [KERNEL, "gmem", 40.0, 0.4, 2]] == found.astype(
        object
    ).to_numpy().tolist()
    with pytest.raises(PerfkitError, match="below 0"):
        paths.kernels(TREE, METRICS, stalls((6, "gmem", -1.0)))


def test_call_paths() -> None:
    # Without placeholders a kernel is what has no callees, and of two paths to it the one with more time is named.
    for given in ((TREE, METRICS), (TREE,), (with_a_line(), METRICS)):
        assert {KERNEL: "main thread > train > at::mm > sgemm(float*)"} == call_paths(
            *given
        ).to_dict()
    callers = (
        {"node": n, "parent": p, "name": name}
        for n, p, name in ((2, 1, "g"), (3, 2, "f"), (4, 1, "f"))
    )
    tree = calltree({"node": 1, "name": MAIN}, *callers)
    metrics = call_metrics(
        (3, "time", "s", 1.0, 1.0), (4, "time", "s", 2.0, 2.0), (3, "launches", "count", 9.0, 9.0)
    )
    assert {"f": "main thread > f"} == call_paths(tree, metrics).to_dict()
    assert {"f": "main thread > g > f"} == call_paths(tree).to_dict()


def test_hot_path_by_hand() -> None:
    # From the worker's root it goes to its own kernel, though the main thread has more.
    found = paths.hot_path(TREE, METRICS, metric="GPUOP")
    assert [
        (0, 1, "entry", MAIN, "s", 1.0),
        (1, 2, "function", "train", "s", 1.0),
        (2, 3, "line", "train.py:12", "s", 1.0),
        (3, 4, "function", "at::mm(at::Tensor)", "s", 1.0),
        (4, 5, "gpu_operation", "<gpu kernel>", "s", 0.5),
    ] == tuples(found, "depth", "node", "kind", "name", "unit", "share_frac")
    for metric, more, nodes in (
        ("CPUTIME", {}, [1, 2, 3, 4]),
        ("GKER", {"entry": WORKER}, [10, 11, 12]),
    ):
        assert nodes == paths.hot_path(TREE, METRICS, metric=metric, **more)["node"].tolist()


def test_threads_by_hand() -> None:
    # A thread of a profile without metrics has the value 0 and no share.
    who = threads((1, "cpu", "thread 0"), (2, "cpu", "thread 1"), (3, "cpu", "thread 2"))
    did = [
        (1, WORKER, "CPUTIME", "s", 2.0),
        (2, MAIN, "CPUTIME", "s", 5.0),
        (2, WORKER, "CPUTIME", "s", 1.0),
    ]
    found = paths.threads(who, thread_metrics(*did), metric="CPUTIME")
    columns = "thread", "entry", "value", "share_frac", "times_mean"
    assert [(2, MAIN, 6.0, 0.75, 1.5), (1, WORKER, 2.0, 0.25, 0.5)] == tuples(found[:2], *columns)
    assert [3, 0.0, 0.0] == found.loc[2, ["thread", "value", "times_mean"]].tolist()
    found = paths.threads(threads((1, "cpu", "a")), THREAD_METRICS.empty(), metric="GKER")
    assert [0.0] == found["value"].tolist()
    assert found[["share_frac", "times_mean"]].isna().all(axis=None)


def test_a_tree_that_is_none_does_not_hang() -> None:
    parent = np.array([1, 0, 1])
    assert [-1, -1, 2] == nearest(parent, np.array([False, False, True])).tolist()
    below = ({"node": 2, "parent": 1, "name": "f"}, {"node": 3, "parent": 2, "name": "g"})
    tree = calltree({"node": 1, "name": MAIN}, *below)
    assert ["f > main thread > f > g"] == described(tree, parent, np.array([2]), ["g"])


def test_a_tree_of_5000_levels() -> None:
    """Below 5,000 functions, the first of them Python, a kernel has its whole path and the line at the top."""
    depth = 5000
    rows: list[dict[str, object]] = [
        {"node": 1, "name": MAIN},
        {"node": 2, "parent": 1, "name": "train", "module": PYTHON},
        {
            "node": 3,
            "parent": 2,
            "name": "train.py:5",
            "kind": "line",
            "file": "/x/train.py",
            "line": 5,
        },
        *({"node": node, "parent": node - 1, "name": f"f{node}"} for node in range(4, depth + 4)),
        {"node": depth + 4, "parent": depth + 3, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": depth + 5, "parent": depth + 4, "name": "k"},
    ]
    tree = calltree(*rows)
    metrics = call_metrics(
        *((n, "GKER", "s", 1.0, float(n == depth + 5)) for n in range(1, depth + 6))
    )
    (row,) = paths.kernels(tree, metrics).to_dict("records")
    assert ("train.py:5 train", f"f{depth + 3}") == (row["python"], row["site"])
    steps = row["path"].split(" > ")
    assert (depth + 3, MAIN, "train", "f4", "k") == (len(steps), *steps[:3], steps[-1])
    assert depth + 5 == len(paths.hot_path(tree, metrics, metric="GKER"))
    assert ["k"] == paths.exclusive(tree, metrics, metric="GKER")["name"].tolist()
