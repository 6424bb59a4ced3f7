"""The timeline that a person zooms into, as a specification."""

from __future__ import annotations

import csv
import io
from typing import Any

import altair as alt
import pandas as pd
import pytest
from vl_convert import vegalite_to_svg

from perfkit.charts.detail import BINS, CHOSEN, COLOURS, NAMES, SPANS, canvas, timeline
from perfkit.errors import SchemaError

NO_BINS = pd.DataFrame(columns=[*BINS])
LAUNCH = {"call": "cudaLaunchKernel", "call_start_ns": 900, "call_dur_ns": 50}


def spans(*rows: dict[str, Any]) -> pd.DataFrame:
    """Intervals; what a row leaves out is as of a gemm of 100 ns without a launching call."""
    usual = {"lane": 0, "level": 0, "levels": 1, "kind": "gemm", "name": "gemm", "start_ns": 1000, "dur_ns": 100}
    usual |= {"correlation": -1, "call": None, "call_start_ns": None, "call_dur_ns": None, "id": None}
    frame = pd.DataFrame([{**usual, **row} for row in rows], columns=[*SPANS])
    return frame.astype(dict.fromkeys(("call_start_ns", "call_dur_ns", "id"), "Int64"))


def bins(*rows: tuple[int, str, int, float]) -> pd.DataFrame:
    """Bins of 10 ns from lane, kind, start and busy share."""
    return pd.DataFrame([(lane, kind, start, 10, busy) for lane, kind, start, busy in rows], columns=[*BINS])


def drawn(
    binned: pd.DataFrame, single: pd.DataFrame, labels: tuple[str, ...] = ("GPU 0 · stream 7",)
) -> dict[str, Any]:
    """The specification from 1000 ns to 2000 ns."""
    return timeline(labels, binned, single, window=(1000, 2000), title="Title")


def rows(spec: dict[str, Any], name: str) -> list[dict[str, str]]:
    """The rows of a data set that travels as CSV."""
    return list(csv.DictReader(io.StringIO(spec["datasets"][name])))


def test_the_specification_is_one() -> None:
    """It matches the schema of Vega-Lite, and Vega draws it."""
    single = spans(
        {**LAUNCH, "id": 3, "correlation": 5}, {"lane": 1, "kind": "range", "dur_ns": 900, "name": "forward"}
    )
    spec = drawn(bins((0, "copy", 1000, 0.5)), single, ("GPU 0 · stream 7", "NVTX · thread 1"))
    alt.LayerChart.from_dict(spec, validate=True)
    svg = vegalite_to_svg(spec)
    assert all(
        text in svg for text in ("GPU 0 · stream 7", "launched by: cudaLaunchKernel", "starts at (µs): 1", "forward")
    )


def test_kinds_of_a_bin_stand_on_one_another() -> None:
    """0.5 computation and 0.25 copy of a lane that is 0.86 high and ends at 0.93: 0.93, 0.50 and 0.285."""
    found = rows(drawn(bins((0, "copy", 1000, 0.25), (0, "computation", 1000, 0.5)), spans()), "bins")
    assert [("930", "500", "500"), ("500", "285", "250")] == [(row["low"], row["high"], row["busy"]) for row in found]


def test_lanes_and_bins_each_begin_at_the_bottom() -> None:
    """A copy alone in the second bin, or in lane 1, does not stand on what the first bin of lane 0 holds."""
    found = rows(drawn(bins((0, "copy", 1000, 0.5), (0, "copy", 1010, 0.5), (1, "copy", 1000, 0.5)), spans()), "bins")
    assert ["930", "930", "1930"] == [row["low"] for row in found]


def test_overlap_keeps_to_its_lane() -> None:
    """Kinds that add up to 1.6 of a bin share the lane, which reaches from 0.07 to 0.93."""
    found = rows(drawn(bins((0, "copy", 1000, 0.8), (0, "computation", 1000, 0.8)), spans()), "bins")
    assert ("70", "930") == (found[1]["high"], found[0]["low"])


def test_intervals_travel_with_their_call() -> None:
    """Times count from the start of the window; what was launched before it has a negative one."""
    (found,) = rows(drawn(NO_BINS, spans({**LAUNCH, "start_ns": 1005, "id": 7, "correlation": 3})), "operations")
    assert {"s": "5", "d": "100", "c": "3", "t": "-100", "u": "50", "id": "7"} == {
        k: found[k] for k in ("s", "d", "c", "t", "u", "id")
    }


def test_what_is_not_recorded_is_empty() -> None:
    """Without a call there is no time of one, and without an id a click reports nothing."""
    (found,) = rows(drawn(NO_BINS, spans({})), "operations")
    assert ("", "", "", "-1") == (found["t"], found["u"], found["id"], found["a"])


def test_nested_ranges_lie_below_one_another() -> None:
    """Of two levels the outer fills 0.07 to 0.5, the inner 0.5 to 0.93."""
    outer = {"kind": "range", "levels": 2, "level": 0}
    found = rows(drawn(NO_BINS, spans(outer, {**outer, "level": 1})), "others")
    assert [("70", "500"), ("500", "930")] == [(row["high"], row["low"]) for row in found]


def test_names_cannot_end_a_row() -> None:
    """A name with commas, quotes and line ends travels beside the rows, on one line, and shortened."""
    spec = drawn(NO_BINS, spans({"name": 'a,"b"\n1,2,3' + "x" * 900}, {}))
    assert 2 == len(rows(spec, "operations"))
    (text,) = [one["text"] for one in spec["datasets"]["names"] if one["text"].startswith("a,")]
    assert len(text) == 50
    assert "\n" not in text


def test_a_text_travels_once() -> None:
    """A thousand launches of one name by one call: three texts, with the family's."""
    spec = drawn(NO_BINS, spans(*({**LAUNCH, "name": "k"} for _ in range(1000))))
    assert ["gemm", "k", "cudaLaunchKernel"] == [one["text"] for one in spec["datasets"]["names"]]


def test_the_legend_holds_what_is_there() -> None:
    """Communication of a bin and of an interval is one entry; a kind keeps its colour."""
    spec = drawn(bins((0, "communication", 1000, 0.5)), spans({"kind": "communication"}, {"kind": "step"}))
    scale = spec["layer"][1]["encoding"]["fill"]["scale"]
    assert {"communication": COLOURS["communication"], "step": COLOURS["step"]} == dict(
        zip(scale["domain"], scale["range"], strict=True)
    )


def test_words_fit_into_their_bars() -> None:
    """900 of 1000 ns are 576 px, room for 95 letters; 10 ns have room for none."""
    found = spans({"kind": "step", "name": "step 1", "dur_ns": 900}, {"kind": "step", "name": "step 2", "dur_ns": 10})
    assert ["step 1"] == [word["text"] for word in drawn(NO_BINS, found)["datasets"]["words"]]


def test_every_kind_has_a_name() -> None:
    """No colour stands in a legend under a key."""
    assert {*COLOURS} <= {*NAMES}


def test_refuses_what_it_cannot_draw() -> None:
    """A kind without a colour, a share of 1.2 and a missing column are errors of the caller."""
    with pytest.raises(ValueError, match=r"kind: \['idle'\] are not among"):
        drawn(bins((0, "idle", 1000, 0.5)), spans())
    with pytest.raises(ValueError, match=r"busy_frac: 1\.2 is not a fraction"):
        drawn(bins((0, "copy", 1000, 1.2)), spans())
    with pytest.raises(SchemaError, match="levels"):
        drawn(NO_BINS, spans().drop(columns="levels"))
    with pytest.raises(ValueError, match="20001 rows are more than 20000"):
        drawn(bins(*[(0, "copy", 1000, 0.5)] * 20_001), spans())


def test_a_gesture_reaches_who_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser sets the signals; one that a new picture sets back to nothing is not heard."""
    monkeypatch.setattr(alt.JupyterChart, "enable_offline", lambda: None)
    shown, heard = canvas(), []
    shown.listen(CHOSEN, heard.append)
    for edges in ([1.5, 2.5], None, [3, 4]):
        shown._params = {**shown._params, CHOSEN: edges}
    assert [[1.5, 2.5], [3, 4]] == heard
