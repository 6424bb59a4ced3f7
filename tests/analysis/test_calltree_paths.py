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
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE, STALLS

TREE, METRICS = toy_tree(), toy_metrics()
KERNEL = "sgemm(float*)"
REASONS = ["gmem", "idep", "ifet", "cmem", "sync", "pipe", "mthr", "othr", "nsel", "slp", "tmem", "mem", "inv", "hid"]


def stalls(*rows: tuple[int, str, float]) -> pd.DataFrame:
    """STALLS of call-tree nodes from (node, reason, value)."""
    frame = pd.DataFrame(rows, columns=["node", "reason", "value"])
    return STALLS.make(frame.assign(rank=0, launch=-1))


def with_a_line() -> pd.DataFrame:
    """The toy program's tree with a line, node 8, in the main thread's kernel."""
    line = calltree({"node": 6, "name": MAIN}, {"node": 8, "parent": 6, "name": "a.cu:3", "kind": "line"}).iloc[1:]
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
    (row,) = paths.kernels(TREE, METRICS).to_dict("records")
    assert (KERNEL, KERNEL, "gemm") == (row["name"], row["full_name"], row["family"])
    assert (200.0, 2e6, 1e4, 1.0) == (row["launch_count"], row["total_ns"], row["mean_ns"], row["share_frac"])
    assert pd.isna(row["main_stall"])


def test_the_site_with_most_time_is_named() -> None:
    """With 1 ms each the main thread's launch site comes first; with 3 ms of the 4 the worker's does."""
    assert ("main thread > train > at::mm > sgemm(float*)", "at::mm", "train.py:12 train") == tuple(
        paths.kernels(TREE, METRICS).loc[0, ["path", "site", "python"]]
    )
    more = METRICS.assign(exclusive=METRICS["exclusive"].where(METRICS["node"].ne(12), 0.003))
    (row,) = paths.kernels(TREE, more).to_dict("records")
    assert (4e6, "application thread > backward > sgemm(float*)", "backward") == (
        row["total_ns"],
        row["path"],
        row["site"],
    )
    assert pd.isna(row["python"])


def test_time_at_the_kernel_itself() -> None:
    """HPCToolkit stores time and launches at the kernel's function; the placeholder then has nothing alone."""
    tree = launching({"name": "f"})
    metrics = call_metrics(
        *((node, "GKER", "s", 0.5, 0.5 if node == 4 else 0.0) for node in (1, 2, 3, 4)),
        *((node, "GKER:COUNT", "count", 5.0, 5.0 if node == 4 else 0.0) for node in (1, 2, 3, 4)),
    )
    assert [("k", 5e8, 5.0)] == list(
        paths.kernels(tree, metrics)[["name", "total_ns", "launch_count"]].itertuples(index=False, name=None)
    )


def test_kernels_without_a_name() -> None:
    """A placeholder without kernels, and what one with two has beside them, is called <gpu kernel>."""
    tree = calltree(
        {"node": 1, "name": MAIN},
        {"node": 2, "parent": 1, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": 3, "parent": 1, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": 4, "parent": 3, "name": "a"},
        {"node": 5, "parent": 3, "name": "b"},
    )
    own = {2: 1.0, 3: 2.0, 4: 4.0, 5: 5.0}
    metrics = call_metrics(
        (1, "GKER", "s", 12.0, 0.0), *((n, "GKER", "s", 11.0 if n == 3 else own[n], own[n]) for n in own)
    )
    found = paths.kernels(tree, metrics)
    assert [("b", 5e9), ("a", 4e9), ("<gpu kernel>", 3e9)] == tuples(found, "full_name", "total_ns")
    assert pytest.approx(1.0, rel=1e-12) == found["share_frac"].sum()
    assert found["launch_count"].isna().all()


def test_contexts_of_a_trace_alone_are_no_kernels() -> None:
    """A kernel that no metric has is left out where others have one, and kept where nothing was measured."""
    metrics = METRICS[~METRICS["node"].isin([12, 13])]
    assert [1e6] == paths.kernels(TREE, metrics)["total_ns"].tolist()
    assert [KERNEL] == paths.kernels(TREE, CALL_METRICS.empty())["name"].tolist()


def test_python_line_and_operator() -> None:
    """add_ is Python without a line: the line that called it counts; the operator is named without its last step."""
    tree = launching(
        {"name": "sgd", "module": PYTHON, "file": "/x/sgd.py", "line": 400},
        {"name": "sgd.py:446", "kind": "line", "file": "/x/sgd.py", "line": 446},
        {"name": "add_", "module": PYTHON},
        {"name": "at::_ops::add__Tensor::call(at::Tensor&) [libtorch_cpu.so]", "module": "/lib/libtorch_cpu.so"},
        {"name": "[libtorch_cpu.so]:0", "kind": "line"},
        {"name": "at::_ops::add__Tensor::redispatch(at::Tensor&)", "module": "/lib/libtorch_cpu.so"},
        {"name": "at::native::gpu_kernel<F>(at::TensorIteratorBase&)", "module": "/lib/libtorch_cuda.so"},
    )
    (row,) = launched(tree, CALL_METRICS.empty()).to_dict("records")
    assert ("sgd", "/x/sgd.py", 446, "at::_ops::add__Tensor") == tuple(
        row[name] for name in ("function", "file", "line", "site")
    )
    assert ["sgd.py:446 sgd"] == paths.kernels(tree, CALL_METRICS.empty())["python"].tolist()
    assert [
        "main thread > sgd > add_ > at::_ops::add__Tensor::call > at::_ops::add__Tensor::redispatch > "
        "at::native::gpu_kernel > k"
    ] == paths.kernels(tree, CALL_METRICS.empty())["path"].tolist()


def test_a_line_of_a_script_has_no_function() -> None:
    """A line right below the entry point is module-level code: file and line are known."""
    tree = launching({"name": "run.py:7", "kind": "line", "file": "/x/run.py", "line": 7})
    (row,) = launched(tree, CALL_METRICS.empty()).to_dict("records")
    assert ("/x/run.py", 7) == (row["file"], row["line"])
    assert ["run.py:7"] == paths.kernels(tree, CALL_METRICS.empty())["python"].tolist()
    assert pd.isna(row["function"])


def test_calls_of_the_runtime_are_no_site() -> None:
    """Without an operator the site is the function above the launch, not cudaLaunchKernel or nvcc's stub."""
    tree = launching(
        {"name": "work(int)"},
        {"name": "__device_stub__Z1kv()"},
        {"name": "cudaLaunchKernel<char>"},
        {"name": "cuLaunch"},
    )
    assert ["work"] == launched(tree, CALL_METRICS.empty())["site"].tolist()


def test_launch_sites_by_hand() -> None:
    """The toy's kernel is launched from train.py:12 and from the worker's backward pass, half of the time each."""
    found = launched(TREE, METRICS).sort_values("entry")
    assert [(WORKER, pd.NA, "backward", 100.0), (MAIN, 12, "at::mm", 100.0)] == tuples(
        found, "entry", "line", "site", "launch_count"
    )
    assert len(set(found["total_ns"])) == 1


def test_main_stall_by_hand() -> None:
    """gmem 6 at one context; idep 3 on a line in it and 5 at another: 8 of 14. Hidden waits do not lead."""
    tree = with_a_line()
    samples = stalls((6, "gmem", 6.0), (8, "idep", 3.0), (13, "idep", 5.0), (4, "ifet", 99.0))
    (row,) = paths.kernels(tree, METRICS, samples).to_dict("records")
    assert "idep" == row["main_stall"]
    assert pytest.approx(8 / 14, rel=1e-12) == row["main_stall_frac"]
    (row,) = paths.kernels(tree, METRICS, stalls((6, "hid", 9.0), (6, "gmem", 1.0))).to_dict("records")
    assert ("gmem", 0.1) == (row["main_stall"], row["main_stall_frac"])


def test_stalls_of_each_kernel_by_hand() -> None:
    """Node 8 is a line of sgemm: 30 + 10 of gmem and 60 of sync are 40 and 60 %; node 4 lies outside of kernels."""
    waits = stalls((6, "gmem", 30), (8, "gmem", 10), (13, "sync", 60), (4, "gmem", 5))
    found = paths.kernel_stalls(with_a_line(), METRICS, waits)
    assert [(KERNEL, "sync", 60.0, 0.6, 1), (KERNEL, "gmem", 40.0, 0.4, 2)] == list(
        found.drop(columns="full_name").itertuples(index=False, name=None)
    )


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_hpctoolkit_has_words(reason: str) -> None:
    """Each of HPCToolkit's stall reasons is explained, with and without its old prefix."""
    assert stall_words[reason].means.endswith(".")
    assert stall_words[reason] == stall_words[f"stl_{reason}"]
    if reason != "hid":
        assert [stall_words[reason].helps] == main_stall(stalls((1, reason, 1.0)), by="node")["helps"].tolist()


def test_call_paths_of_a_gpu_tree() -> None:
    """Kernels are what stands below placeholders; placeholders of copies and other leaves are no kernels."""
    found = call_paths(TREE, METRICS)
    assert {KERNEL: "main thread > train > at::mm > sgemm(float*)"} == found.to_dict()
    assert found.to_dict() == call_paths(TREE).to_dict()
    assert found.to_dict() == call_paths(with_a_line(), METRICS).to_dict()


def test_call_paths_of_a_tree_without_placeholders() -> None:
    """There a kernel is what has no callees, and of two paths to it the one with more time is named."""
    tree = calltree(
        {"node": 1, "name": MAIN},
        {"node": 2, "parent": 1, "name": "g"},
        {"node": 3, "parent": 2, "name": "f"},
        {"node": 4, "parent": 1, "name": "f"},
    )
    metrics = call_metrics((3, "time", "s", 1.0, 1.0), (4, "time", "s", 2.0, 2.0), (3, "launches", "count", 9.0, 9.0))
    assert {"f": "main thread > f"} == call_paths(tree, metrics).to_dict()
    assert {"f": "main thread > g > f"} == call_paths(tree).to_dict()


def test_empty_tables() -> None:
    """Nothing gives no rows, with the columns and dtypes of a full answer."""
    nothing = CALLTREE.empty(), CALL_METRICS.empty()
    samples = stalls((6, "gmem", 1.0))
    for full, empty in (
        (paths.kernels(TREE, METRICS, samples), paths.kernels(*nothing, STALLS.empty())),
        (paths.kernels(TREE, METRICS, samples), paths.kernels(*nothing)),
        (launched(TREE, METRICS), launched(*nothing)),
    ):
        assert (0, full.dtypes.astype(str).to_dict()) == (len(empty), empty.dtypes.astype(str).to_dict())
    assert paths.kernels(TREE, METRICS).dtypes.equals(paths.kernels(TREE, METRICS, STALLS.empty()).dtypes)


def test_wrong_arguments_and_tables() -> None:
    """Other tables, and values that cannot be, are refused."""
    with pytest.raises(SchemaError, match="CALLTREE"):
        paths.kernels(METRICS, METRICS)
    with pytest.raises(SchemaError, match="CALL_METRICS"):
        launched(TREE, TREE)
    with pytest.raises(SchemaError, match="STALLS"):
        paths.kernels(TREE, METRICS, METRICS)
    with pytest.raises(PerfkitError, match="below 0"):
        paths.kernels(TREE, METRICS, stalls((6, "gmem", -1.0)))
    with pytest.raises(SchemaError, match="CALLTREE"):
        call_paths(METRICS)
