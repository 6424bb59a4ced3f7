"""The timeline that a person zooms into, as its page gets it."""

from typing import Any

import pandas as pd
from frames import lasting, unpacked

from perfkit.charts.detail import BINS, COLOURS, LOOKED, NAMES, SPANS, Canvas, timeline

NO_BINS = pd.DataFrame(columns=[*BINS])
LAUNCH = {"call": "cudaLaunchKernel", "call_start_ns": 900, "call_dur_ns": 50}


def spans(*rows: dict[str, Any]) -> pd.DataFrame:
    """Intervals; what a row leaves out is as of a gemm of 100 ns without a launching call."""
    usual = lasting(1000, 100, "gemm", lane=0, level=0, levels=1, kind="gemm")
    usual |= {
        "correlation": -1,
        "call": None,
        "call_start_ns": None,
        "call_dur_ns": None,
        "id": None,
    }
    frame = pd.DataFrame([{**usual, **row} for row in rows], columns=[*SPANS])
    return frame.astype(dict.fromkeys(("call_start_ns", "call_dur_ns", "id"), "Int64"))


def bins(*rows: tuple[int, str, int, float]) -> pd.DataFrame:
    """Bins of 10 ns from lane, kind, start and busy share."""
    return pd.DataFrame(
        [(lane, kind, start, 10, busy) for lane, kind, start, busy in rows], columns=[*BINS]
    )


def drawn(binned: pd.DataFrame, single: pd.DataFrame) -> dict[str, Any]:
    return timeline(("GPU 0 · stream 7",), binned, single, window=(1000, 2000), title="Title")


def rows(drawing: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of a table that travels as bytes."""
    return unpacked(drawing[name]).to_dict("records")


def test_kinds_of_a_bin_stand_on_one_another() -> None:
    """0.5 computation and 0.25 copy of a lane that is 0.86 high and ends at 0.93: 0.93, 0.50 and 0.285."""
    found = rows(
        drawn(bins((0, "copy", 1000, 0.25), (0, "computation", 1000, 0.5)), spans()), "bins"
    )
    assert [(930, 500, 500), (500, 285, 250)] == [
        (row["low"], row["high"], row["busy"]) for row in found
    ]
    found = rows(
        drawn(
            bins((0, "copy", 1000, 0.5), (0, "copy", 1010, 0.5), (1, "copy", 1000, 0.5)), spans()
        ),
        "bins",
    )
    assert [(0, 930), (0, 930), (1, 930)] == [
        (row["lane"], row["low"]) for row in found
    ]  # each begins at the bottom
    found = rows(
        drawn(bins((0, "copy", 1000, 0.8), (0, "computation", 1000, 0.8)), spans()), "bins"
    )
    assert (70, 930) == (found[1]["high"], found[0]["low"])  # overlap keeps to its lane


def test_intervals_travel_with_their_call() -> None:
    """Times count from the start of the window; what was launched before it has a negative one."""
    (found,) = rows(
        drawn(NO_BINS, spans({**LAUNCH, "start_ns": 1005, "id": 7, "correlation": 3})), "spans"
    )
    assert {"s": 5, "d": 100, "c": 3, "t": -100, "u": 50, "id": 7}.items() <= found.items()
    (found,) = rows(drawn(NO_BINS, spans({})), "spans")
    assert all(pd.isna(found[name]) for name in ("t", "u", "id"))
    assert -1 == found["a"]


def test_a_nanosecond_is_exact_late_on_a_long_axis() -> None:
    """A kernel of 3 ns, 30 days after a wall clock of 2026: origin and offsets together give its start."""
    origin, month = 1_790_000_000_123_456_789, 30 * 86_400 * 10**9
    start = origin + month + 1
    ends = {"window": (start - 7, start + 9), "whole": (origin, start + 9)}
    drawing = timeline(["x"], NO_BINS, spans(lasting(start, 3)), **ends, title="")
    (found,) = rows(drawing, "spans")
    assert start == int(drawing["origin"]) + drawing["window"][0] + int(found["s"])
    assert [month - 6, month + 10] == drawing["window"]


def test_texts_travel_once_and_the_legend_holds_what_is_there() -> None:
    drawing = drawn(NO_BINS, spans(*({**LAUNCH, "name": "a\n1" + "x" * 900} for _ in range(1000))))
    kind, name, call = drawing["names"]
    assert ("gemm", "cudaLaunchKernel", 120, False) == (kind, call, len(name), "\n" in name)
    found = drawn(
        bins((0, "communication", 1000, 0.5)), spans({"kind": "communication"}, {"kind": "step"})
    )["colours"]
    assert {"communication": COLOURS["communication"], "step": COLOURS["step"]} == found
    assert {*COLOURS} <= {*NAMES}


def test_a_gesture_reaches_who_listens() -> None:
    shown, heard = Canvas(), []
    shown.listen(heard.append)
    shown._handle_custom_msg({"kind": LOOKED, "first": 1, "last": 2}, [])
    assert [{"kind": LOOKED, "first": 1, "last": 2}] == heard
