"""The icicle: contexts under their callers, as wide as what they hold."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import vl_convert
from callpaths import call_metrics, calltree, toy_metrics, toy_tree
from charts.checking import Spec, checked, drawn, refuses, subtitle, title

from perfkit.charts import icicle
from perfkit.errors import SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE


def node(number: int, parent: int | None, name: str, **more: object) -> dict[str, object]:
    """A context of a tree; a name as "a.c:1" is a line."""
    file, _, line = name.partition(":")
    of_line = {"kind": "line", "file": f"/{file}", "line": int(line)} if line.isdigit() else {}
    return {
        "node": number,
        **({"parent": parent} if parent else {}),
        "name": name,
        **of_line,
        **more,
    }


def seconds(**inclusive: float) -> pd.DataFrame:
    """CPUTIME of nodes n1, n2, ..."""
    return call_metrics(
        *((int(node[1:]), "CPUTIME", "s", value, 0.0) for node, value in inclusive.items())
    )


def picture(*rows: dict[str, object], held: tuple[float, ...], **options: Any) -> Spec:
    """The icicle of a tree whose root is node 1, the main thread; its nodes hold so many seconds."""
    values = {f"n{n}": value for n, value in enumerate(held, start=1)}
    return checked(
        icicle.tree(calltree(node(1, None, "main thread"), *rows), seconds(**values), **options)
    )


def bars(spec: Spec) -> list[tuple[Any, ...]]:
    """Row, label, begin and end of every bar, by row and place."""
    return sorted(drawn(spec, "row", "label", "begin", "end"), key=lambda bar: (bar[0], bar[2]))


def labels(spec: Spec) -> list[str]:
    return [label for (label,) in drawn(spec, "label")]


def test_bars_lie_under_their_callers() -> None:
    """CPU time 4 s: main 3 s, of which mm (2 s) lies under train (3 s); backward (0.75 s) under the worker (1 s)."""
    spec = checked(icicle.tree(toy_tree(), toy_metrics()))
    assert [
        (0, "main thread", 0, 3),
        (0, "application thread", 3, 4),
        (1, "train", 0, 3),
        (1, "backward()", 3, 3.75),
        (2, "mm", 0, 2),
    ] == bars(spec)
    assert "mm takes 50.0 % of the CPU time, called from train.py:12" == title(spec)
    assert subtitle(spec)[0].startswith("4.00 s in all")
    params = {param["name"]: param for param in spec["params"]}
    assert ("", "text") == (params["search"]["value"], params["search"]["bind"]["input"])


def test_kinds_are_told_apart() -> None:
    spec = checked(icicle.tree(toy_tree(), toy_metrics(), metric="GPUOP"))
    assert {
        "main thread": "other",
        "application thread": "other",
        "train": "Python",
        "mm": "native code",
        "backward()": "native code",
        "<gpu kernel>": "GPU operation",
        "<gpu copyin>": "GPU operation",
    } == dict(drawn(spec, "label", "kind"))
    assert ["train.py:12"] == [
        called for label, called in drawn(spec, "label", "called") if label == "mm"
    ]
    kernel = (
        node(2, 1, "<gpu kernel>", kind="gpu_operation"),
        node(3, 2, "sgemm(float*)"),
        node(4, 3, "inlined"),
    )
    spec = picture(*kernel, held=(2, 2, 2, 1))
    assert [("other",), ("GPU operation",), ("kernel",), ("kernel",)] == drawn(spec, "kind")
    trees, metrics = (
        [f.assign(rank=np.int32(r)) for r in (0, 1)] for f in (toy_tree(), toy_metrics())
    )
    spec = checked(
        icicle.tree(CALLTREE.make(pd.concat(trees)), CALL_METRICS.make(pd.concat(metrics)))
    )
    assert [(0, "rank 0 · main thread", 0, 3), (0, "rank 1 · main thread", 3, 6)] == bars(spec)[:2]


def test_equal_functions_under_one_caller_are_one_bar() -> None:
    """f is called from two lines of main, 1 s and 2 s: one bar of 3 s; g, only in the second line, stays its callee."""
    rows = [
        node(2, 1, "main"),
        node(3, 2, "a.c:1"),
        node(4, 2, "loop at a.c:5", kind="loop"),
        node(5, 4, "a.c:7"),
    ]
    spec = picture(
        *rows, node(6, 3, "f"), node(7, 5, "f"), node(8, 7, "g"), held=(4, 4, 1, 3, 3, 1, 2, 2)
    )
    assert [(0, "main thread", 0, 4), (1, "main", 0, 4), (2, "f", 0, 3), (3, "g", 0, 2)] == bars(
        spec
    )
    assert ["a.c:7 and other lines"] == [
        called for label, called in drawn(spec, "label", "called") if label == "f"
    ]


def test_what_is_narrow_becomes_one_bar_and_rows_below_the_last_are_counted() -> None:
    spec = picture(
        *(node(n, 1, f"f{n}") for n in (2, 3, 4, 5)), held=(100, 1, 95, 1, 1), at_least_frac=0.02
    )
    assert [(0, "main thread", 0, 100), (1, "f3", 0, 95), (1, "3 smaller", 95, 98)] == bars(spec)
    assert "other" == spec["layer"][0]["rows"][-1]["kind"]
    rows = [
        node(n + i, max(n - 2, 1), f"{name}{n}")
        for n in range(2, 10, 2)
        for i, name in enumerate("fg")
    ]
    spec = picture(*rows, held=(16.0, *(2.0 ** (4 - n // 2) for n in range(2, 10))), depth=3)
    assert {(0,), (1,), (2,)} == {*drawn(spec, "row")}
    assert "2 rows below are not drawn." in subtitle(spec)[0]


def test_of_too_many_bars_the_widest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of 1 to 8 s, at most six bars: those under 36 s x 0.002 x 64 = 4.6 s become one."""
    monkeypatch.setattr(icicle, "MOST_BARS", 6)
    spec = picture(*(node(n, 1, f"f{n}") for n in range(2, 10)), held=(36, *range(1, 9)))
    assert ["main thread", "f9", "f8", "f7", "f6", "4 smaller"] == [
        label for _, label, _, _ in bars(spec)
    ]


def deep(levels: int) -> Spec:
    """A chain of native functions, each the only callee of the one before, over a copy."""
    rows = [node(n, n - 1, f"f{n}") for n in range(2, levels + 2)]
    return picture(
        *rows,
        node(levels + 2, levels + 1, "<gpu copyin>", kind="gpu_operation"),
        held=(1,) * (levels + 2),
    )


def test_chains_lose_their_middle() -> None:
    spec = deep(30)
    assert ["main thread", "f2", "… f31", "<gpu copyin>"] == labels(spec)
    hidden = spec["layer"][0]["rows"][2]["hidden"].split(", ")
    assert (28, "f3", "f30") == (len(hidden), hidden[0], hidden[-1])
    # 5,000 levels are more than Python may recurse; with 22 functions all 24 rows are drawn.
    assert [4, 24, 4] == [len(labels(deep(levels))) for levels in (5_000, 22, 23)]


def test_names_from_outside_stay_data() -> None:
    names = ["<script>'\"+alert(1)", "x" * 10_000, "line\nbreak\u202e"]
    spec = picture(*(node(n, 1, name) for n, name in enumerate(names, start=2)), held=(6, 3, 2, 1))
    assert ["<script>'\"+alert(1)", "line break\ufffd"] == labels(spec)[1::2]
    assert (
        max(
            len(text)
            for row in spec["layer"][0]["rows"]
            for text in row.values()
            if isinstance(text, str)
        )
        <= 300
    )
    assert "alert" not in json.dumps(spec["params"])


@pytest.mark.parametrize("version", ["5.20", "6.4"])
def test_a_click_and_a_search_are_signals(version: str) -> None:
    """JupyterLab draws with Vega-Lite 5, the report with 6: both know the ends of the axis and the text as signals."""
    vega = vl_convert.vegalite_to_vega(
        icicle.tree(toy_tree(), toy_metrics()).to_dict(), vl_version=version
    )
    signals = {signal["name"]: signal for signal in vega["signals"]}
    assert "clicked.begin ? clicked.begin[0] : 0" == signals["left"]["update"]
    assert "clicked.end ? clicked.end[0] : 4.0" == signals["right"]["update"]
    assert "text" == signals["search"]["bind"]["input"]
    across = next(scale for scale in vega["scales"] if scale["name"] == "x")
    assert ({"signal": "left"}, {"signal": "right"}) == (across["domainMin"], across["domainMax"])


def test_without_call_paths_the_chart_says_so() -> None:
    assert (
        "Nothing to draw"
        in checked(icicle.tree(CALLTREE.empty(), CALL_METRICS.empty()))["description"]
    )
    zero = call_metrics((1, "A", "s", 1.0, 1.0), (1, "B", "s", 0.0, 0.0))
    assert "No call paths with B" == title(
        icicle.tree(calltree(node(1, None, "main thread")), zero, metric="B")
    )


def test_wrong_arguments_are_refused() -> None:
    toy = tree, metrics = toy_tree(), toy_metrics()
    refuses(
        ValueError,
        r"metric: 'TIME' is not one of \['CPUTIME', 'GKER'",
        icicle.tree,
        *toy,
        metric="TIME",
    )
    refuses(ValueError, "depth: 1 is not at least 2", icicle.tree, *toy, depth=1)
    refuses(
        ValueError, "at_least_frac: 0 is not between 0 and 1", icicle.tree, *toy, at_least_frac=0
    )
    refuses(
        ValueError,
        r"fold: \['entry'\] is not a collection of \['function'",
        icicle.tree,
        *toy,
        fold=["entry"],
    )
    refuses(SchemaError, r"\['kind'\] are missing", icicle.tree, tree.drop(columns="kind"), metrics)
    small = calltree(node(1, None, "main thread"), node(2, 1, "f")), seconds(n1=1, n2=2)
    refuses(
        ValueError,
        "call_metrics: what node 1 calls holds 2, more than its own 1",
        icicle.tree,
        *small,
    )
    pd.testing.assert_frame_equal(toy_tree(), tree)  # the tables are read only
    pd.testing.assert_frame_equal(toy_metrics(), metrics)
