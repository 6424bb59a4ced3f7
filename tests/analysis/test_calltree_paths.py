"""Kernels in a call tree: their time, their stalls, and from where they were launched."""

from __future__ import annotations

import pandas as pd
import pytest
from callpaths import MAIN, PYTHON, WORKER, call_metrics, calltree, toy_metrics, toy_tree
from frames import tuples

from perfkit.analysis import calltree as paths
from perfkit.analysis.calltree.paths import launched
from perfkit.analysis.dossier import call_paths
from perfkit.analysis.warps import main_stall, stall_words
from perfkit.errors import PerfkitError
from perfkit.tables import CALL_METRICS, CALLTREE, STALLS

TREE, METRICS = toy_tree(), toy_metrics()
KERNEL = "sgemm(float*)"


def stalls(*rows: tuple[int, str, float]) -> pd.DataFrame:
    """STALLS of call-tree nodes from (node, reason, value)."""
    frame = pd.DataFrame(rows, columns=["node", "reason", "value"])
    return STALLS.make(frame.assign(rank=0, launch=-1))


def with_a_line() -> pd.DataFrame:
    """The toy program's tree with a line, node 8, in the main thread's kernel."""
    line = calltree({"node": 6, "name": MAIN}, {"node": 8, "parent": 6, "name": "a.cu:3", "kind": "line"})[1:]
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
    """Two contexts launch sgemm 100 times each, in 1 ms each: 2 ms of 200 launches, all kernel time there is."""
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
    """HPCToolkit stores time and launches at the kernel's function; the placeholder then has nothing alone."""
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
    assert [1e6] == paths.kernels(TREE, METRICS[~METRICS["node"].isin([12, 13])])["total_ns"].tolist()
    assert [KERNEL] == paths.kernels(TREE, CALL_METRICS.empty())["name"].tolist()


def test_python_line_and_operator() -> None:
    """add_ is Python without a line: the line that called it counts; the operator is named without its last step."""
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
        {"name": "at::native::gpu_kernel<F>(at::TensorIteratorBase&)", "module": "/lib/libtorch_cuda.so"},
    )
    columns = ["function", "file", "line", "site"]
    assert [("sgd", "/x/sgd.py", 446, "at::_ops::add__Tensor")] == tuples(launched(tree, nothing), *columns)
    path = "add_ > at::_ops::add__Tensor::call > at::_ops::add__Tensor::redispatch > at::native::gpu_kernel > k"
    found = paths.kernels(tree, nothing)
    assert [("sgd.py:446 sgd", f"main thread > sgd > {path}")] == tuples(found, "python", "path")
    tree = launching({"name": "run.py:7", "kind": "line", "file": "/x/run.py", "line": 7})
    found = launched(tree, nothing)
    assert [("/x/run.py", 7)] == tuples(found, "file", "line")
    assert found["function"].isna().all()
    assert ["run.py:7"] == paths.kernels(tree, nothing)["python"].tolist()
    names = ("work(int)", "__device_stub__Z1kv()", "cudaLaunchKernel<char>", "cuLaunch")
    assert ["work"] == launched(launching(*({"name": name} for name in names)), nothing)["site"].tolist()


def test_launch_sites_by_hand() -> None:
    """The toy's kernel is launched from train.py:12 and from the worker's backward pass, half of the time each."""
    found = launched(TREE, METRICS).sort_values("entry")
    assert [(WORKER, pd.NA, "backward", 100.0), (MAIN, 12, "at::mm", 100.0)] == tuples(
        found, "entry", "line", "site", "launch_count"
    )
    assert len(set(found["total_ns"])) == 1


def test_stalls_by_hand() -> None:
    """gmem 6 at one context; idep 3 on a line in it and 5 at another: 8 of 14. Hidden waits do not lead."""
    # Node 8 is a line of sgemm: 30 + 10 of gmem and 60 of sync are 40 and 60 %; node 4 lies outside of kernels.
    tree = with_a_line()
    samples = stalls((6, "gmem", 6.0), (8, "idep", 3.0), (13, "idep", 5.0), (4, "ifet", 99.0))
    (row,) = paths.kernels(tree, METRICS, samples).to_dict("records")
    assert "idep" == row["main_stall"]
    assert pytest.approx(8 / 14, rel=1e-12) == row["main_stall_frac"]
    (row,) = paths.kernels(tree, METRICS, stalls((6, "hid", 9.0), (6, "gmem", 1.0))).to_dict("records")
    assert ("gmem", 0.1) == (row["main_stall"], row["main_stall_frac"])
    samples = stalls((6, "gmem", 30), (8, "gmem", 10), (13, "sync", 60), (4, "gmem", 5))
    found = paths.kernel_stalls(tree, METRICS, samples).drop(columns="full_name")
    assert [[KERNEL, "sync", 60.0, 0.6, 1], [KERNEL, "gmem", 40.0, 0.4, 2]] == found.astype(object).to_numpy().tolist()
    with pytest.raises(PerfkitError, match="below 0"):
        paths.kernels(TREE, METRICS, stalls((6, "gmem", -1.0)))


def test_every_reason_of_hpctoolkit_has_words() -> None:
    """Each of HPCToolkit's stall reasons is explained, with and without its old prefix."""
    reasons = ["gmem", "idep", "ifet", "cmem", "sync", "pipe", "mthr", "othr", "nsel", "slp", "tmem", "mem", "inv"]
    for reason in (*reasons, "hid"):
        assert stall_words[reason].means.endswith(".")
        assert stall_words[reason] == stall_words[f"stl_{reason}"]
    for reason in reasons:
        assert [stall_words[reason].helps] == main_stall(stalls((1, reason, 1.0)), by="node")["helps"].tolist()


def test_call_paths() -> None:
    """Kernels are what stands below placeholders; placeholders of copies and other leaves are no kernels."""
    # Without placeholders a kernel is what has no callees, and of two paths to it the one with more time is named.
    for given in ((TREE, METRICS), (TREE,), (with_a_line(), METRICS)):
        assert {KERNEL: "main thread > train > at::mm > sgemm(float*)"} == call_paths(*given).to_dict()
    callers = ({"node": n, "parent": p, "name": name} for n, p, name in ((2, 1, "g"), (3, 2, "f"), (4, 1, "f")))
    tree = calltree({"node": 1, "name": MAIN}, *callers)
    metrics = call_metrics((3, "time", "s", 1.0, 1.0), (4, "time", "s", 2.0, 2.0), (3, "launches", "count", 9.0, 9.0))
    assert {"f": "main thread > f"} == call_paths(tree, metrics).to_dict()
    assert {"f": "main thread > g > f"} == call_paths(tree).to_dict()
