"""The icicle: contexts under their callers, as wide as what they hold."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert
from callpaths import PYTHON, call_metrics, calltree, toy_metrics, toy_tree

import perfkit
from perfkit.charts import icicle
from perfkit.errors import SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
Row = dict[str, object]
GPU = "hpctoolkit/hpctoolkit-dlrm-gpu-database"


def seconds(**inclusive: float) -> pd.DataFrame:
    """CPUTIME of nodes n1, n2, ..."""
    return call_metrics(*((int(node[1:]), "CPUTIME", "s", value, 0.0) for node, value in inclusive.items()))


def main_with(*rows: Row) -> pd.DataFrame:
    """A tree whose root is node 1, the main thread."""
    return calltree({"node": 1, "name": "main thread"}, *rows)


def bars(spec: dict[str, Any]) -> list[tuple[int, str, float, float]]:
    """Row, label, begin and end of every bar, by row and place."""
    found = [(r["row"], r["label"], r["begin"], r["end"]) for r in spec["layer"][0]["rows"]]
    return sorted(found, key=lambda bar: (bar[0], bar[2]))


def test_bars_lie_under_their_callers(checked: Check) -> None:
    """CPU time 4 s: main 3 s, of which mm (2 s) lies under train (3 s); backward (0.75 s) under the worker (1 s)."""
    spec = checked(icicle.tree(toy_tree(), toy_metrics()))
    assert [
        (0, "main thread", 0, 3),
        (0, "application thread", 3, 4),
        (1, "train", 0, 3),
        (1, "backward()", 3, 3.75),
        (2, "mm", 0, 2),
    ] == bars(spec)
    assert "mm takes 50.0 % of the CPU time, called from train.py:12" == spec["title"]["text"]
    assert "CPU time, summed over threads (s)" == spec["layer"][0]["encoding"]["x"]["title"]
    assert spec["title"]["subtitle"][0].startswith("4.00 s in all")


def test_kinds_are_told_apart(checked: Check) -> None:
    """Below <gpu kernel> lies a kernel; Python is known by its module; the call line is the tooltip's."""
    rows = checked(icicle.tree(toy_tree(), toy_metrics(), metric="GPUOP"))["layer"][0]["rows"]
    kinds = {row["label"]: row["kind"] for row in rows}
    assert {
        "main thread": "other",
        "application thread": "other",
        "train": "Python",
        "mm": "native code",
        "backward()": "native code",
        "<gpu kernel>": "GPU operation",
        "<gpu copyin>": "GPU operation",
    } == kinds
    assert ["train.py:12"] == [row["called"] for row in rows if row["label"] == "mm"]


def test_kernels_stand_under_their_operation(checked: Check) -> None:
    """A function under <gpu kernel>, and all below it, is a kernel."""
    tree = main_with(
        {"node": 2, "parent": 1, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": 3, "parent": 2, "name": "sgemm(float*)"},
        {"node": 4, "parent": 3, "name": "inlined"},
    )
    rows = checked(icicle.tree(tree, seconds(n1=2, n2=2, n3=2, n4=1)))["layer"][0]["rows"]
    assert ["other", "GPU operation", "kernel", "kernel"] == [row["kind"] for row in rows]


def test_equal_functions_under_one_caller_are_one_bar(checked: Check) -> None:
    """f is called from two lines of main, 1 s and 2 s: one bar of 3 s; g, only in the second line, stays its callee."""
    tree = main_with(
        {"node": 2, "parent": 1, "name": "main"},
        {"node": 3, "parent": 2, "name": "a.c:1", "kind": "line", "file": "/a.c", "line": 1},
        {"node": 4, "parent": 2, "name": "loop at a.c:5", "kind": "loop"},
        {"node": 5, "parent": 4, "name": "a.c:7", "kind": "line", "file": "/a.c", "line": 7},
        {"node": 6, "parent": 3, "name": "f"},
        {"node": 7, "parent": 5, "name": "f"},
        {"node": 8, "parent": 7, "name": "g"},
    )
    spec = checked(icicle.tree(tree, seconds(n1=4, n2=4, n3=1, n4=3, n5=3, n6=1, n7=2, n8=2)))
    assert [(0, "main thread", 0, 4), (1, "main", 0, 4), (2, "f", 0, 3), (3, "g", 0, 2)] == bars(spec)
    assert ["a.c:7 and other lines"] == [r["called"] for r in spec["layer"][0]["rows"] if r["label"] == "f"]


def test_lines_right_under_an_entry_stay(checked: Check) -> None:
    """The top level of a script has no function: its lines are bars, of Python by their file."""
    tree = main_with(
        {"node": 2, "parent": 1, "name": "run.py:9", "kind": "line", "file": "/run.py", "line": 9},
        {"node": 3, "parent": 2, "name": "fit", "module": PYTHON},
        {"node": 4, "parent": 3, "name": "fit.py:2", "kind": "line", "file": "/fit.py", "line": 2},
    )
    rows = checked(icicle.tree(tree, seconds(n1=1, n2=1, n3=1, n4=1)))["layer"][0]["rows"]
    assert [("main thread", "other"), ("run.py:9", "Python"), ("fit", "Python")] == [
        (row["label"], row["kind"]) for row in rows
    ]
    unfolded = checked(icicle.tree(tree, seconds(n1=1, n2=1, n3=1, n4=1), fold=()))["layer"][0]["rows"]
    assert ["main thread", "run.py:9", "fit", "fit.py:2"] == [row["label"] for row in unfolded]


def test_what_is_narrow_becomes_one_bar(checked: Check) -> None:
    """Of 100 s, f has 95 s; three functions of 1 s each are less than 2 % and become '3 smaller', 3 s, placed last."""
    tree = main_with(*({"node": n, "parent": 1, "name": f"f{n}"} for n in (2, 3, 4, 5)))
    spec = checked(icicle.tree(tree, seconds(n1=100, n2=1, n3=95, n4=1, n5=1), at_least_frac=0.02))
    assert [(0, "main thread", 0, 100), (1, "f3", 0, 95), (1, "3 smaller", 95, 98)] == bars(spec)
    assert "other" == spec["layer"][0]["rows"][-1]["kind"]


def test_of_too_many_bars_the_widest_stay(monkeypatch: pytest.MonkeyPatch, checked: Check) -> None:
    """Functions of 1 to 8 s, at most six bars: those under 36 s x 0.002 x 64 = 4.6 s become one."""
    monkeypatch.setattr(icicle, "MOST_BARS", 6)
    tree = main_with(*({"node": n, "parent": 1, "name": f"f{n}"} for n in range(2, 10)))
    spec = checked(icicle.tree(tree, seconds(n1=36, **{f"n{n}": n - 1 for n in range(2, 10)})))
    assert ["main thread", "f9", "f8", "f7", "f6", "4 smaller"] == [label for _, label, _, _ in bars(spec)]


def test_entries_are_always_drawn(monkeypatch: pytest.MonkeyPatch, checked: Check) -> None:
    """Three entry points stay, whatever their number and width."""
    monkeypatch.setattr(icicle, "MOST_BARS", 2)
    tree = calltree(*({"node": n, "name": f"thread {n}"} for n in (1, 2, 3)))
    assert 3 == len(bars(checked(icicle.tree(tree, seconds(n1=1, n2=1, n3=1), at_least_frac=0.5))))


def deep(levels: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A chain of native functions, each the only callee of the one before, over a copy."""
    rows: list[Row] = [{"node": n, "parent": n - 1, "name": f"f{n}"} for n in range(2, levels + 2)]
    tree = main_with(*rows, {"node": levels + 2, "parent": levels + 1, "name": "<gpu copyin>", "kind": "gpu_operation"})
    return tree, call_metrics(*((n, "GPUOP", "s", 1.0, 0.0) for n in range(1, levels + 3)))


def test_chains_lose_their_middle(checked: Check) -> None:
    """Of 30 functions in a chain the first and the last stay; the last stands for the 28 between and says so."""
    rows = checked(icicle.tree(*deep(30)))["layer"][0]["rows"]
    assert ["main thread", "f2", "… f31", "<gpu copyin>"] == [row["label"] for row in rows]
    assert (28, "f3", "f30") == (len(h := rows[2]["hidden"].split(", ")), h[0], h[-1])


def test_stacks_of_thousands_of_levels_are_drawn(checked: Check) -> None:
    """5,000 levels, more than Python may recurse, fill four rows."""
    assert 4 == len(checked(icicle.tree(*deep(5_000)))["layer"][0]["rows"])


def test_a_tree_that_fits_keeps_all_its_rows(checked: Check) -> None:
    """With 22 functions all 24 rows are drawn; with 23 the middle goes."""
    assert 24 == len(checked(icicle.tree(*deep(22)))["layer"][0]["rows"])
    assert 4 == len(checked(icicle.tree(*deep(23)))["layer"][0]["rows"])


def test_functions_without_a_name_go_first(checked: Check) -> None:
    """The last function with a name stands for a chain that ends in <unknown procedure>."""
    tree = main_with(
        {"node": 2, "parent": 1, "name": "sgemm"},
        {"node": 3, "parent": 2, "name": "<unknown procedure> 0x1 [libcublas.so]"},
        {"node": 4, "parent": 3, "name": "matmul"},
        {"node": 5, "parent": 4, "name": "<unknown procedure> 0x2 [libcublas.so]"},
        {"node": 6, "parent": 5, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": 7, "parent": 6, "name": "gemm"},
    )
    rows = checked(icicle.tree(tree, seconds(n1=1, n2=1, n3=1, n4=1, n5=1, n6=1, n7=1), depth=5))["layer"][0]["rows"]
    assert ["main thread", "sgemm", "… matmul", "<gpu kernel>", "gemm"] == [row["label"] for row in rows]


def test_rows_below_the_last_are_counted(checked: Check) -> None:
    """Three rows hold the entry and two of four branching functions: two rows below are not drawn."""
    rows: list[Row] = []
    for n in range(2, 10, 2):
        parent = 1 if n == 2 else n - 2
        rows += [{"node": n, "parent": parent, "name": f"f{n}"}, {"node": n + 1, "parent": parent, "name": f"g{n}"}]
    values = {f"n{n}": 2.0 ** (4 - n // 2) for n in range(1, 10)}
    spec = checked(icicle.tree(main_with(*rows), seconds(**{**values, "n1": 16.0}), depth=3))
    assert {0, 1, 2} == {row["row"] for row in spec["layer"][0]["rows"]}
    assert "2 rows below are not drawn." in spec["title"]["subtitle"][0]


def brute_force(tree: pd.DataFrame, value: dict[int, float]) -> dict[tuple[str, ...], float]:
    """The value of every path of names with lines left out, by walking up from each function."""
    rows = tree.set_index("node")
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for node, held in value.items():
        if rows["kind"][node] == "line":
            continue
        path, at = [], node
        while not pd.isna(at):
            if rows["kind"][at] != "line":
                path.append(str(rows["name"][at]))
            at = rows["parent"][at]
        found[tuple(path[::-1])] += held
    return dict(found)


def test_paths_hold_what_a_walk_up_the_tree_says(checked: Check) -> None:
    """300 made-up contexts: each bar is its path of names with their sum; bars of one caller do not overlap."""
    random = np.random.default_rng(7)
    rows: list[Row] = [{"node": 2, "parent": 1, "name": "main"}]
    for n in range(3, 303):
        line = random.random() < 0.4
        rows.append(
            {
                "node": n,
                "parent": int(random.integers(max(2, n - 40), n)),
                "name": f"x.c:{n}" if line else f"f{random.integers(4)}",
                "kind": "line" if line else "function",
            }
        )
    tree = main_with(*rows)
    value = dict.fromkeys(tree["node"], 1.0)
    for node, parent in reversed(list(zip(tree["node"], tree["parent"], strict=True))):
        if not pd.isna(parent):
            value[parent] += value[node]
    chart = icicle.tree(tree, seconds(**{f"n{n}": v for n, v in value.items()}), at_least_frac=1e-9, depth=1_000)
    drawn = checked(chart)["layer"][0]["rows"]
    at = {(row["row"], row["begin"]): row["label"] for row in drawn}
    found = {}
    for row in drawn:
        begins = [max(b for r, b in at if r == level and b <= row["begin"]) for level in range(row["row"] + 1)]
        found[tuple(at[level, begin] for level, begin in enumerate(begins))] = row["end"] - row["begin"]
    expected = brute_force(tree, value)
    assert expected == pytest.approx(found, abs=1e-5)  # begin and end are written with six decimals
    for level in range(max(row["row"] for row in drawn) + 1):
        spans = sorted((row["begin"], row["end"]) for row in drawn if row["row"] == level)
        assert all(end <= begin + 1e-5 for (_, end), (begin, _) in pairwise(spans))


def test_the_field_for_a_search_is_empty_at_first(checked: Check) -> None:
    """The text that a person writes is a parameter of the chart."""
    params = {param["name"]: param for param in checked(icicle.tree(toy_tree(), toy_metrics()))["params"]}
    assert ("", "text") == (params["search"]["value"], params["search"]["bind"]["input"])


def test_names_from_outside_stay_data(checked: Check) -> None:
    """Markup, quotes, line breaks and 10,000 characters are text on one line, and in no expression."""
    names = ["<script>'\"+alert(1)", "x" * 10_000, "line\nbreak\u202e"]
    tree = main_with(*({"node": n, "parent": 1, "name": name} for n, name in enumerate(names, start=2)))
    spec = checked(icicle.tree(tree, seconds(n1=6, n2=3, n3=2, n4=1)))
    label = [row["label"] for row in spec["layer"][0]["rows"]][1:]
    assert ["<script>'\"+alert(1)", "line break\ufffd"] == [label[0], label[2]]
    assert max(len(text) for row in spec["layer"][0]["rows"] for text in row.values() if isinstance(text, str)) <= 300
    assert "alert" not in json.dumps(spec["params"])


@pytest.mark.parametrize("version", ["5.20", "6.4"])
def test_a_click_and_a_search_are_signals(version: str) -> None:
    """JupyterLab draws with Vega-Lite 5, the report with 6: both know the ends of the axis and the text as signals."""
    spec = icicle.tree(toy_tree(), toy_metrics()).to_dict()
    vega = vl_convert.vegalite_to_vega(spec, vl_version=version)
    signals = {signal["name"]: signal for signal in vega["signals"]}
    assert "clicked.begin ? clicked.begin[0] : 0" == signals["left"]["update"]
    assert "clicked.end ? clicked.end[0] : 4.0" == signals["right"]["update"]
    assert "text" == signals["search"]["bind"]["input"]
    across = next(scale for scale in vega["scales"] if scale["name"] == "x")
    assert ({"signal": "left"}, {"signal": "right"}) == (across["domainMin"], across["domainMax"])


def test_ranks_stand_beside_each_other(checked: Check) -> None:
    """Two databases make one picture, whose roots say the rank."""
    trees, metrics = ([f.assign(rank=np.int32(r)) for r in (0, 1)] for f in (toy_tree(), toy_metrics()))
    spec = checked(icicle.tree(CALLTREE.make(pd.concat(trees)), CALL_METRICS.make(pd.concat(metrics))))
    assert [(0, "rank 0 · main thread", 0, 3), (0, "rank 1 · main thread", 3, 6)] == bars(spec)[:2]


@pytest.mark.parametrize(
    ("metric", "title", "first"),
    [
        ("GXCOPY:H2D", "GXCOPY:H2D (MB)", "8.00 MB in all"),
        ("GKER:COUNT", "GKER:COUNT (count)", "200 count in all"),
        ("GPUOP", "GPU time (ms)", "3.00 ms in all"),
    ],
)
def test_units_are_those_of_the_metric(metric: str, title: str, first: str, checked: Check) -> None:
    """Bytes, counts and seconds are told in units that people use."""
    spec = checked(icicle.tree(toy_tree(), toy_metrics(), metric=metric))
    assert title == spec["layer"][0]["encoding"]["x"]["title"]
    assert spec["title"]["subtitle"][0].startswith(first)


def test_without_call_paths_the_chart_says_so(checked: Check) -> None:
    """An empty table, and a metric that is 0, are sentences."""
    assert "Nothing to draw" in checked(icicle.tree(CALLTREE.empty(), CALL_METRICS.empty()))["description"]
    zero = call_metrics((1, "A", "s", 1.0, 1.0), (1, "B", "s", 0.0, 0.0))
    assert "No call paths with B" == checked(icicle.tree(main_with(), zero, metric="B"))["title"]["text"]


def test_a_context_that_holds_less_than_it_calls_is_refused() -> None:
    """1 s that calls 2 s cannot be drawn, and is not cut."""
    tree = main_with({"node": 2, "parent": 1, "name": "f"})
    with pytest.raises(ValueError, match="call_metrics: what node 1 calls holds 2, more than its own 1"):
        icicle.tree(tree, seconds(n1=1, n2=2))


def test_wrong_arguments_are_refused() -> None:
    """Each argument outside its range is named with what is legal."""
    tree, metrics = toy_tree(), toy_metrics()
    with pytest.raises(ValueError, match=r"metric: 'TIME' is not one of \['CPUTIME', 'GKER'"):
        icicle.tree(tree, metrics, metric="TIME")
    with pytest.raises(ValueError, match="depth: 1 is not at least 2"):
        icicle.tree(tree, metrics, depth=1)
    with pytest.raises(ValueError, match=r"at_least_frac: 0 is not between 0 and 1"):
        icicle.tree(tree, metrics, at_least_frac=0)
    with pytest.raises(ValueError, match=r"fold: \['entry'\] is not a collection of \['function'"):
        icicle.tree(tree, metrics, fold=["entry"])
    with pytest.raises(SchemaError, match=r"\['kind'\] are missing"):
        icicle.tree(tree.drop(columns="kind"), metrics)


def test_arguments_are_not_changed() -> None:
    """The tables are read only."""
    tree, metrics = toy_tree(), toy_metrics()
    icicle.tree(tree, metrics)
    pd.testing.assert_frame_equal(toy_tree(), tree)
    pd.testing.assert_frame_equal(toy_metrics(), metrics)


def test_the_real_capture_is_readable(profiles: Path, checked: Check) -> None:
    """DLRM on a GPU, 75 levels deep: at most 24 rows, 139.8 ms, 65.2 % of it in the main thread, as truth.json says."""
    run = perfkit.load(profiles / GPU)
    chart = icicle.tree(run.calltree, run.call_metrics, metric="GPUOP")
    rows = checked(chart)["layer"][0]["rows"]
    truth = json.loads((profiles / "golden" / f"{GPU}.truth.json").read_text())
    roots = {row["label"]: row["end"] - row["begin"] for row in rows if row["row"] == 0}
    of_entry = {entry: 1e3 * value for entry, value in truth["by_entry"]["GPUOP (sec)"].items()}
    assert of_entry == pytest.approx(roots, abs=2e-6)  # begin and end are written with six decimals
    assert max(row["row"] for row in rows) < 24
    assert len(rows) < 1_500
    assert len(json.dumps(chart.to_dict())) < 150_000
    assert chart.title.text.startswith("<gpu copyin> takes 50.7 % of the GPU time, called from dlrm_s_pytorch.py:898")
