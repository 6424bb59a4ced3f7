"""Between what a control shows and the exact ns."""

from __future__ import annotations

import pytest

from perfkit.widgets.page import Axis

AXIS = Axis(0, 100_000_000)  # 100 ms in 1000 steps of 0.1 ms


@pytest.mark.parametrize(
    ("moved", "window", "chosen"),
    [
        ((20.0, 70.0), (), (20_000_000, 70_000_000)),
        ((0.0, 70.0), (), (0, 70_000_000)),
        ((12.345678, 70.0), (12_345_678, 50_000_001), (12_345_678, 70_000_000)),
        ((12.3, 50.000001), (12_345_678, 50_000_001), (12_345_678, 50_000_001)),
        ((0.04, 99.96), (12_345_678, 50_000_001), ()),
        ((30.0, 30.0), (), (30_000_000, 30_100_000)),
        ((100.0, 100.0), (), (99_900_000, 100_000_000)),
        ((-5.0, 40.0), (), (0, 40_000_000)),
    ],
)
def test_edges_that_stayed_keep_their_ns(moved: tuple[float, float], window: tuple[int, ...], chosen: object) -> None:
    """An edge moved by less than half a step is the exact one before; both at the ends are no window at all."""
    assert chosen == AXIS.chosen(moved, window)


def test_what_is_shown_is_not_moved() -> None:
    """Sent back as it was shown, a window of 1 ns, one beyond the axis and one between steps stay themselves."""
    for window in [
        (5, 6),
        (99_999_999, 100_000_000),
        (12_345_678, 12_345_679),
        (-50, 200_000_000),
        (10**9, 10**10),
        (),
    ]:
        assert window == AXIS.chosen(AXIS.shown(window), window)


def test_a_recording_of_1_ns() -> None:
    """It has one window."""
    assert (7, 8) == Axis(7, 8).chosen((7.0, 7.4), ())
