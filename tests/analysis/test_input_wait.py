"""How much of each step the training thread waits for data."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import kernels, ranges

from perfkit.analysis.host import input_wait
from perfkit.analysis.steps import STEPS
from perfkit.errors import SchemaError
from perfkit.tables import RANGES

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def loading(start: int, end: int, name: str = LOADER, **more: Any) -> dict[str, Any]:
    """A range of the data loader."""
    return {"start_ns": start, "dur_ns": end - start, "name": name, **more}


def steps(*bounds: tuple[int, int], rank: int = 0) -> pd.DataFrame:
    """Steps of a rank from start to end."""
    rows = [
        {"rank": rank, "step": i, "start_ns": a, "dur_ns": b - a, "name": "s", "how": "profiler step", "steady": True}
        for i, (a, b) in enumerate(bounds)
    ]
    return STEPS.make(pd.DataFrame(rows, columns=STEPS.column_names))


def test_worked_by_hand() -> None:
    """Steps 0..100 and 100..200; the loader runs 0..40 and 110..120: 40 % as in the chapter's case 1, and 10 %."""
    found = input_wait(ranges(loading(0, 40), loading(110, 120)), steps((0, 100), (100, 200)))
    assert [40, 10] == found["wait_ns"].tolist()
    assert [0.4, 0.1] == found["wait_frac"].tolist()


def test_wait_is_cut_at_the_step() -> None:
    """A wait 90..130 lies 10 ns in the step that ends at 100 and 30 in the next."""
    assert [10, 30] == input_wait(ranges(loading(90, 130)), steps((0, 100), (100, 200)))["wait_ns"].tolist()


def test_nested_ranges_count_once() -> None:
    """A range "Data loading" around the loader's covers 30 ns with it."""
    found = input_wait(ranges(loading(0, 30, "Data loading"), loading(5, 25, depth=1)), steps((0, 100)))
    assert [30] == found["wait_ns"].tolist()


@pytest.mark.parametrize("name", [LOADER, "get_batch", "next batch", "DataLoader", "batch-generator"])
def test_names_that_load_data(name: str) -> None:
    """PyTorch's range and the names that people give to loading count."""
    assert [9] == input_wait(ranges(loading(0, 9, name)), steps((0, 100)))["wait_ns"].tolist()


def test_step_without_wait_in_a_run_with_waits() -> None:
    """A step in which the loader is not asked waits for 0."""
    found = input_wait(ranges(loading(0, 40)), steps((0, 100), (100, 200)))
    assert [0.4, 0.0] == found["wait_frac"].tolist()


def test_rank_without_a_loader() -> None:
    """A rank that records no loading says nothing: missing, not 0."""
    both = STEPS.make(pd.concat([steps((0, 100)), steps((0, 100), rank=1)]))
    found = input_wait(ranges(loading(0, 40), loading(0, 90, "forward", rank=1)), both)
    assert [False, True] == found["wait_ns"].isna().tolist()
    assert [False, True] == found["wait_frac"].isna().tolist()


def test_training_thread() -> None:
    """Of two threads the one that spends more time loading is taken: 40 and 10 ns, not the 60 of a helper's 5."""
    spans = loading(0, 40), loading(110, 120), loading(60, 65, thread=2)
    assert [40, 10] == input_wait(ranges(*spans), steps((0, 100), (100, 200)))["wait_ns"].tolist()


def test_ranks_wait_on_their_own() -> None:
    """The loader of rank 1 does not count in the steps of rank 0."""
    both = STEPS.make(pd.concat([steps((0, 100)), steps((0, 100), rank=1)]))
    found = input_wait(ranges(loading(0, 40), loading(20, 90, rank=1)), both)
    assert [40, 70] == found["wait_ns"].tolist()


def test_step_of_no_duration() -> None:
    """0 of 0 is NaN."""
    assert np.isnan(input_wait(ranges(loading(0, 40)), steps((5, 5)))["wait_frac"]).all()


def test_waits_by_counting_nanoseconds() -> None:
    """The waits of all steps are the ns of them in which any range loads data."""
    random = np.random.default_rng(2)
    spans = [loading(start, start + dur) for start, dur in random.integers(0, (1000, 40), (40, 2)).tolist()]
    bounds = list(pairwise(range(0, 1050, 70)))
    moments = {at for span in spans for at in range(span["start_ns"], span["start_ns"] + span["dur_ns"])}
    expected = [len(moments & set(range(*bound))) for bound in bounds]
    found = input_wait(ranges(*spans), steps(*bounds))
    assert expected == found["wait_ns"].tolist()
    assert found["wait_frac"].between(0, 1).all()


def test_empty() -> None:
    """No steps, no rows; steps without any range have no answer; the types are the same."""
    some = input_wait(ranges(loading(0, 40)), steps((0, 100)))
    none = input_wait(RANGES.empty(), STEPS.empty())
    assert none.empty
    assert some.dtypes.astype(str).to_dict() == none.dtypes.astype(str).to_dict()
    assert input_wait(RANGES.empty(), steps((0, 100)))["wait_ns"].isna().all()


def test_wrong_tables() -> None:
    """Foreign tables are refused; the input is not changed."""
    spans, there = ranges(loading(0, 40)), steps((0, 100))
    before = spans.copy(), there.copy()
    with pytest.raises(SchemaError, match="'RANGES' does not match"):
        input_wait(kernels(), there)
    with pytest.raises(SchemaError, match="'STEPS' does not match"):
        input_wait(spans, spans)
    input_wait(spans, there)
    pd.testing.assert_frame_equal(before[0], spans)
    pd.testing.assert_frame_equal(before[1], there)
