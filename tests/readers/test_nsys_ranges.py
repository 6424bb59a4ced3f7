"""Ranges of Nsight Systems exports: NVTX and MPI, one quirk a test (made files)."""

from pathlib import Path
from typing import Any

import pandas as pd
from readers import nsys_files as made
from readers.nsys_files import Write, every_form, values

from perfkit.readers import nsys

CAPTURE_END = 10**6  # ns, the duration of made.session()


def by_name(frame: pd.DataFrame, *columns: str) -> dict[str, Any]:
    return dict(zip(frame["name"], values(frame, *columns), strict=True))


@every_form
def test_ranges_are_read(write: Write, tmp_path: Path) -> None:
    # A range is named by its text, else by the string of its textId; text wins; neither is unnamed.
    torch = "aten::mm, seq = 12, op_id = 3, sizes = [[2, 3], [3, 4]]"  # kept as written
    texts = [("inline", None), (None, "registered"), ("both", "other"), (None, None), (torch, None)]
    rows = [made.event(i, 9, text, textId=stored) for i, (text, stored) in enumerate(texts)]
    frame = made.table(tmp_path, "RANGES", *rows, write=write)
    assert ["inline", "registered", "both", "unnamed", torch] == values(frame, "name")
    for column in (
        "text",
        "textId",
    ):  # old exports have no textId, and all texts may be registered strings
        rows = made.without([made.event(0, 9, "step", textId="step")], column)
        assert ["step"] == values(
            nsys.read(write(tmp_path / column, {made.NVTX: rows})).table("RANGES"), "name"
        )
    # Names of threads and categories are no ranges; a range that ends on another thread belongs to where it began.
    types = (made.PUSH_POP, made.START_END, made.MARK, 33, 39, 75)
    elsewhere = {"tid": 3, "endGlobalTid": made.process(1) | 4}
    rows = [
        made.event(t, None if t == made.MARK else t + 5, f"{t}", eventType=t, **elsewhere)
        for t in types
    ]
    frame = made.table(tmp_path, "RANGES", *rows, write=write)
    expected = {"59": ["push_pop", 5, 3], "60": ["start_end", 5, 3], "34": ["mark", 0, 3]}
    assert expected == by_name(frame, "kind", "dur_ns", "thread")
    profile = nsys.read(write(tmp_path / "names alone", {made.NVTX: rows[4:]}))
    assert "RANGES" not in profile.loaders
    assert "RANGES" in [m.table for m in profile.missing]


def test_ends_domains_and_depths_of_ranges(tmp_path: Path) -> None:
    # An open range lasts to the end of the recording; one that opened after it has no length.
    rows = [
        made.event(100, None, "open"),
        made.event(CAPTURE_END + 5, None, "late"),
        made.event(7, 9, "closed"),
    ]
    expected = {"open": CAPTURE_END - 100, "late": 0, "closed": 2}
    assert expected == by_name(made.table(tmp_path, "RANGES", *rows), "dur_ns")
    # Domain 1 of one process is not domain 1 of another; 0 is the default; an unnamed one keeps its number.
    named = {"eventType": made.DOMAIN, "domainId": 1}
    created = [
        made.event(0, None, name, pid=pid, **named) for pid, name in ((1, "NCCL"), (2, "TorchOps"))
    ]
    expected = {(1, 1): "NCCL", (2, 1): "TorchOps", (1, 0): "", (1, None): "", (2, 5): "domain 5"}
    rows = [
        made.event(i, i + 1, f"{key}", pid=key[0], domainId=key[1])
        for i, key in enumerate(expected)
    ]
    found = by_name(made.table(tmp_path, "RANGES", *created, *rows), "domain")
    assert {f"{key}": domain for key, domain in expected.items()} == found
    # Ranges elsewhere, start_end ranges and marks enclose nothing.
    changes = (
        {"tid": 2},
        {"pid": 2},
        {"domainId": 3},
        {"eventType": made.START_END},
        {"eventType": made.MARK},
    )
    outer = [made.event(0, 100, "outer", **change) for change in changes]
    assert [0] * 6 == values(
        made.table(tmp_path, "RANGES", *outer, made.event(10, 20, "inner")), "depth"
    )
    for spans in [  # start, end and expected depth of each range, worked by hand
        # The step holds one and two, which holds a and b; the next step nothing.
        [(0, 100, 0), (0, 40, 1), (40, 100, 1), (40, 41, 2), (90, 100, 2), (100, 101, 0)],
        # Two ranges of the same times enclose one the other, in the order of the export.
        [(0, 9, 0), (0, 9, 1)],
        # On a coarse clock short ranges have no length: that at 10 does not enclose [10, 20). Those at 20, when this
        # is over, lie in the outer range alone; that at 100 lies in none.
        [(0, 100, 0), (10, 10, 2), (10, 20, 1), (20, 20, 1), (20, 20, 1), (100, 100, 0)],
    ]:
        rows = [made.event(start, end, f"{i}") for i, (start, end, _) in enumerate(spans)]
        expected = {f"{i}": depth for i, (*_, depth) in enumerate(spans)}
        assert expected == by_name(made.table(tmp_path, "RANGES", *rows), "depth")


@every_form
def test_mpi_calls_are_ranges_and_impossible_ranges_enclose_nothing(
    write: Write, tmp_path: Path
) -> None:
    # Each table of MPI calls gives ranges of domain MPI with the function's name, with NVTX ranges or alone.
    names = {
        "OTHER": "MPI_Init",
        "P2P": "MPI_Sendrecv",
        "COLLECTIVES": "MPI_Bcast",
        "START_WAIT": "MPI_Wait",
    }
    calls = {
        f"MPI_{kind}_EVENTS": [
            {"start": at, "end": at + 5, "globalTid": made.process(1) | 2, "textId": name}
        ]
        for at, (kind, name) in enumerate(names.items())
    }
    expected = {name: ["MPI", "push_pop", 5, 2] for name in names.values()}
    alone = nsys.read(write(tmp_path / "alone", {**made.session(), **calls})).table("RANGES")
    assert expected == by_name(alone, "domain", "kind", "dur_ns", "thread")
    both = made.table(tmp_path, "RANGES", made.event(0, 90, "exchange"), write=write, **calls)
    assert {**expected, "exchange": ["", "push_pop", 90, 1]} == by_name(
        both, "domain", "kind", "dur_ns", "thread"
    )
    rows = [
        made.event(100, 90, "back"),
        {**made.event(5, 9, "lost"), "start": None},
        made.event(0, 2**62, "endless"),
    ]
    rows += [made.event(0, 100, "step"), made.event(5, 9, "inner")]
    frame = made.handed_on(tmp_path, "RANGES", *rows, write=write)
    expected = {
        "back": [-10, 0],
        "lost": [-1, 0],
        "endless": [2**62, 0],
        "step": [100, 0],
        "inner": [4, 1],
    }
    assert expected == by_name(frame, "dur_ns", "depth")
