"""Overlap of communication and computation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels

from perfkit.analysis.communication import overlap
from perfkit.analysis.timeline import breakdown
from perfkit.errors import SchemaError
from perfkit.tables import COPIES, KERNELS

TOY = kernels(
    {"start_ns": 10_000, "dur_ns": 20_000},
    {"start_ns": 20_000, "dur_ns": 20_000, "stream": 8},
    {"start_ns": 35_000, "dur_ns": 25_000, "stream": 9, "family": "communication"},
)


def made(seed: int) -> pd.DataFrame:
    """Random kernels on two GPUs, every third one communication."""
    random = np.random.default_rng(seed)
    drawn = zip(*(random.integers(0, high, 50).tolist() for high in (2, 200, 20, 3)), strict=True)
    families = ["communication", "gemm", "reduction"]
    return kernels(*({"gpu": g, "start_ns": at, "dur_ns": dur, "family": families[f]} for g, at, dur, f in drawn))


def test_overlap_of_the_toy_timeline() -> None:
    """Communication [35,60) = 25 us, computation [10,40): 5 us of it beside computation, 0.2."""
    assert overlap(TOY).to_numpy().tolist() == [[0, 0, 25_000, 5_000, 0.2]]


def test_overlap_in_a_window() -> None:
    """In [38,48) communication has 10 us and computation [38,40): 0.2 again, of 10 us."""
    assert overlap(TOY, window=(38_000, 48_000)).to_numpy().tolist() == [[0, 0, 10_000, 2_000, 0.2]]


def test_communication_on_top_of_communication_is_not_hidden() -> None:
    """Two collectives at once are one time of communication, and hide nothing of each other."""
    both = kernels(*({"start_ns": at, "dur_ns": 10, "stream": at, "family": "communication"} for at in (0, 5)))
    assert overlap(both).to_numpy().tolist() == [[0, 0, 15, 0, 0.0]]


def test_a_device_without_communication() -> None:
    """Nothing to hide: 0 ns, and the fraction is missing rather than 0; so in a window without work."""
    for found in (overlap(kernels({"start_ns": 0, "dur_ns": 10})), overlap(TOY, window=(80_000, 90_000))):
        assert found[["communication_ns", "overlapped_ns"]].to_numpy().tolist() == [[0, 0]]
        assert found["overlap_frac"].isna().all()


@pytest.mark.parametrize("seed", range(4))
def test_overlap_against_marked_nanoseconds(seed: int) -> None:
    """Both times are counts of nanoseconds marked by communication, and by computation too."""
    frame, expected = made(seed), []
    for gpu in (0, 1):
        cells = {True: np.zeros(220, bool), False: np.zeros(220, bool)}
        for row in frame[frame["gpu"] == gpu].itertuples():
            cells[row.family == "communication"][row.start_ns : row.start_ns + row.dur_ns] = True
        expected.append([cells[True].sum(), (cells[True] & cells[False]).sum()])
    assert overlap(frame)[["communication_ns", "overlapped_ns"]].to_numpy().tolist() == np.array(expected).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_not_hidden_is_exposed(seed: int) -> None:
    """Communication less its overlap is the exposed communication of the breakdown."""
    found = overlap(made(seed))
    exposed = breakdown(made(seed), COPIES.empty())["exposed_communication_ns"]
    assert (found["communication_ns"] - found["overlapped_ns"]).tolist() == exposed.tolist()


def test_empty_table() -> None:
    """Without kernels there is no device; columns and dtypes are those of a full answer."""
    found = overlap(KERNELS.empty())
    assert len(found) == 0
    assert found.dtypes.tolist() == overlap(TOY).dtypes.tolist()


def test_wrong_arguments() -> None:
    """COPIES in place of KERNELS and a reversed window are refused."""
    with pytest.raises(SchemaError, match=r"table 'KERNELS' does not match"):
        overlap(copies())
    with pytest.raises(ValueError, match=r"window: \(9, 2\) does not end after it starts"):
        overlap(TOY, window=(9, 2))
