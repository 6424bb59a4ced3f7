"""Copies that run alone, against `timeline.breakdown`, and how much of copies and communication can be hidden."""

from __future__ import annotations

import pandas as pd
import pytest
from diagnosis.test_diagnosis import _view
from frames import kernels
from planted.causes import planted
from planted.test_causes import run

import perfkit
from perfkit import diagnosis
from perfkit.analysis import timeline
from perfkit.diagnosis.timeline import on_gpus
from perfkit.diagnosis.transfers import exposed, kinds, moved


def test_a_share_of_several_gpus_is_never_averaged() -> None:
    """Two GPUs that agree have a range; where one waits more, it is named with the other."""
    gpus = pd.DataFrame({"rank": [0, 0], "gpu": [0, 3]})
    assert "20.0 % to 25.0 % of the time on 2 GPUs" == on_gpus(0.225, gpus, pd.Series([0.2, 0.25]))
    assert "40.0 % of the time on GPU 3 (GPU 0: 5.0 %)" == on_gpus(0.225, gpus, pd.Series([0.05, 0.4]))
    assert "40.0 % of the time" == on_gpus(0.4, gpus[:1], pd.Series([0.4]))


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


def test_computation_that_hides_communication_already_hides_no_more() -> None:
    """Of 80 ms 60 are communication and 30 computation, 10 both at once: 20 of the 50 exposed ms can be hidden."""
    ms = 1_000_000
    work = [{"start_ns": 0, "dur_ns": 30 * ms}, {"start_ns": 20 * ms, "dur_ns": 60 * ms, "family": "communication"}]
    found = diagnosis.findings(_view(kernels=kernels(*({"stream": i, **row} for i, row in enumerate(work)))))
    gain = next(finding.gain for finding in found if finding.rule == "exposed_communication")
    assert (1, pytest.approx(80 / 60)) == (gain.low, gain.high)
    assert "hides no communication yet (25.0 % of the time); faster or less traffic can save more" in gain.reason
