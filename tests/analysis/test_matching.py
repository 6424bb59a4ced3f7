"""Which kernel of the timeline a measured launch is."""

from __future__ import annotations

import pandas as pd
import pytest
from counted import launches
from frames import kernels

from perfkit import names
from perfkit.analysis.kernels import matched, spelled
from perfkit.tables import KERNELS, LAUNCHES


def timeline(*rows: tuple[str, int, int]) -> pd.DataFrame:
    """KERNELS of full name, grid and block, with the short names a reader would give."""
    return kernels(
        *(
            {"start_ns": i, "dur_ns": 1, "name": names.short(n), "full_name": n, "grid_blocks": g, "block_threads": b}
            for i, (n, g, b) in enumerate(rows)
        )
    )


def measured(*rows: tuple[str, int, int]) -> pd.DataFrame:
    """LAUNCHES of full name, grid and block, with the short names a reader would give."""
    return launches(
        *({"name": names.short(n), "full_name": n, "grid_blocks": g, "block_threads": b} for n, g, b in rows)
    )


@pytest.mark.parametrize(
    ("nsys", "ncu"),
    [
        ("void f<4, float>(int, T2)", "void f<(int)4, float>(int, T2)"),
        ("void f<-1, 0>(T2 *)", "void f<(long)-1, (bool)0>(T2 *)"),
        ("void f<1, 16>(const T1 *)", "void f<true, (unsigned long)16>(T1 const*)"),
        ("void <unnamed>::f<float>(T1 *)", "void (anonymous namespace)::f<float>(T1*)"),
        ("void <unnamed>::f(int)", "unnamed>::f(int)"),
    ],
)
def test_both_tools_spell_one_name(nsys: str, ncu: str) -> None:
    """Casts of numbers, words for bools, spaces and unnamed namespaces make no difference."""
    assert spelled(nsys).removeprefix("void") == spelled(ncu).removeprefix("void")


def test_other_numbers_are_other_kernels() -> None:
    """What differs in a template argument stays different."""
    assert spelled("void f<(int)4>(int)") != spelled("void f<(int)8>(int)")
    assert spelled("f<(Mode)4>(int)") == "f<(Mode)4>(int)"


@pytest.mark.parametrize(
    ("there", "here", "how"),
    [
        ("void f<4, float>(int)", "void f<(int)4, float>(int)", "full_name"),
        ("void at::native::f<4>(int, float)", "void at::native::f<4>(int, double)", "name"),
        ("void app::deep::f<4>(app::deep::T *)", "void f<4>(T *)", "base"),
        ("void f<4>(int)", "void g<4>(int)", "none"),
    ],
)
def test_how_by_hand(there: str, here: str, how: str) -> None:
    """Full name before short name (library kernels have no parameters there) before function name and grid."""
    found = matched(timeline((there, 8, 128)), measured((here, 8, 128))).iloc[0]
    assert (how, how != "none") == (found["matched_by"], found["counts"])
    assert pd.isna(found["name"]) if how == "none" else names.short(there) == found["name"]


def test_function_names_alone_need_grid_and_block() -> None:
    """Without namespaces a launch of another grid, or one that fits two kernels, matches nothing."""
    there = timeline(("a::f<T>(int)", 8, 128), ("b::f<T>(int)", 4, 64), ("c::f<T>(int)", 4, 64))
    found = matched(there, measured(("f<U>(int)", 8, 128), ("f<U>(int)", 9, 128), ("f<U>(int)", 4, 64)))
    assert ["base", "none", "none"] == found["matched_by"].tolist()


def test_grid_and_block_choose_among_launches() -> None:
    """Launches of a grid that the timeline has speak for the kernel; others only where there is none of them."""
    there = timeline(("f", 8, 128), ("g", 8, 128))
    found = matched(there, measured(("f", 8, 128), ("f", 99, 128), ("f", 8, 64), ("g", 99, 128)))
    assert [True, False, False, False] == found["same_grid"].tolist()
    assert [True, False, False, True] == found["counts"].tolist()


def test_empty_tables() -> None:
    """Nothing on either side matches nothing."""
    assert 0 == len(matched(KERNELS.empty(), LAUNCHES.empty()))
    assert 0 == len(matched(timeline(("f", 1, 1)), LAUNCHES.empty()))
    assert ["none"] == matched(KERNELS.empty(), measured(("f", 1, 1)))["matched_by"].tolist()
