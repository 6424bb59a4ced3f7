"""Time in which copies run alone, by kind, against `timeline.breakdown` of these copies beside the kernels."""

from __future__ import annotations

import pytest
from planted.causes import planted
from planted.test_causes import run

import perfkit
from perfkit.analysis import timeline
from perfkit.diagnosis.transfers import exposed, kinds, moved


@pytest.mark.parametrize("part", [(0.0, 1.0), (0.25, 0.75)], ids=["whole", "window"])
@pytest.mark.parametrize("cause", ["pageable copies", "small copies", "synchronous copies"])
def test_copies_alone_are_those_of_the_breakdown(cause: str, part: tuple[float, float]) -> None:
    """The breakdown takes the kernels' time anew for each kind; the diagnosis takes it once for all of them."""
    of = run(planted(cause))
    last = int((of.kernels["start_ns"] + of.kernels["dur_ns"]).max())
    window = () if part == (0.0, 1.0) else [int(share * last) for share in part]
    view = perfkit.select(of, window=window)
    span = int(timeline.busy(view.kernels, view.copies, window=view.window)["span_ns"].sum())
    found = exposed(view)
    assert found
    for kind, share in found.items():
        copies = moved(view)[kinds(view).reindex(moved(view).index).eq(kind)]
        parts = timeline.breakdown(view.all_kernels, copies, window=view.window)
        assert share == parts["exposed_copy_ns"].sum() / span
