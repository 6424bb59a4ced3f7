"""CUDA calls and NVTX ranges of Nsight Systems exports, one quirk a test (made files)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import nsys_files as made
from readers.nsys_files import Write, every_form

from perfkit.readers import nsys

CAPTURE_END = 10**6  # ns, the duration of made.session()


def ranges(folder: Path, *events: made.Row) -> pd.DataFrame:
    """RANGES of a capture of these NVTX events."""
    return made.read(folder, {made.NVTX: list(events)}).table("RANGES")


def by_name(frame: pd.DataFrame, column: str) -> dict[str, object]:
    """A column of RANGES, by the name of the range."""
    return dict(zip(frame["name"], frame[column], strict=True))


# Calls


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaStreamIsCapturing_v10000", "cudaStreamIsCapturing"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaMemcpy_ptds_v7000", "cudaMemcpy"),
        ("cuLaunchKernel", "cuLaunchKernel"),
        ("cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyDtoHAsync"),
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("my_v2_function", "my_v2_function"),
    ],
)
def test_calls_are_named_without_version_and_stream_mode(tmp_path: Path, stored: str, name: str) -> None:
    """_v7000, _v10000, _ptsz and _ptds say how a call was compiled, not which it is."""
    assert [name] == made.read(tmp_path, {made.RUNTIME: [made.call(0, 1, stored)]}).table("API_CALLS")["name"].tolist()


def test_versions_of_one_call_are_one_category(tmp_path: Path) -> None:
    """Calls compiled in two ways are counted together."""
    rows = [made.call(0, 1, "cudaLaunchKernel_v7000"), made.call(1, 2, "cudaLaunchKernel_ptsz_v7000")]
    names = made.read(tmp_path, {made.RUNTIME: rows}).table("API_CALLS")["name"]
    assert ["cudaLaunchKernel"] == names.cat.categories.tolist()
    assert [0, 0] == names.cat.codes.tolist()


def test_calls_of_the_operating_system_are_a_table_of_their_own(tmp_path: Path) -> None:
    """What --trace=osrt intercepted, without nsys's own marks."""
    rows = [
        made.system_call(0, 0, "OS runtime libraries profiling started"),
        made.system_call(50, 90, "fsync", tid=2),
        made.system_call(10, 40, "write"),
    ]
    profile = made.read(tmp_path, {made.SYSTEM: rows})
    found = profile.table("OS_CALLS")
    rows = found[["process", "thread", "start_ns", "dur_ns", "name"]].to_numpy().tolist()
    assert [[1, 1, 10, 30, "write"], [1, 2, 50, 40, "fsync"]] == rows
    assert [] == profile.table("API_CALLS")["name"].tolist()


@every_form
def test_calls_are_sorted_by_thread_and_start(write: Write, tmp_path: Path) -> None:
    """Calls of several threads come by process, thread and start, whatever the order in the export."""
    rows = [made.call(s, s + 2, pid=p, tid=t) for p, t, s in ((2, 1, 0), (1, 9, 7), (1, 8, 9), (1, 9, 3))]
    frame = nsys.read(write(tmp_path / "run", {made.RUNTIME: rows})).table("API_CALLS")
    assert [[1, 8, 9], [1, 9, 3], [1, 9, 7], [2, 1, 0]] == frame[["process", "thread", "start_ns"]].to_numpy().tolist()
    assert {2} == set(frame["dur_ns"])


def test_a_return_value_is_no_reason_to_drop_a_call(tmp_path: Path) -> None:
    """cudaErrorNotReady (600) answers an event query: it is no failure."""
    rows = [made.call(0, 1, "cudaEventQuery_v3020", returnValue=600), made.call(1, 2, "cudaEventQuery_v3020")]
    assert 2 == len(made.read(tmp_path, {made.RUNTIME: rows}).table("API_CALLS"))


# Ranges


@every_form
def test_text_is_inline_or_by_id(write: Write, tmp_path: Path) -> None:
    """A range is named by its text, else by the string of its textId; text wins; neither is unnamed."""
    rows = [
        made.event(0, 9, "inline"),
        made.event(1, 9, None, textId="registered"),
        made.event(2, 9, "both", textId="other"),
        made.event(3, 9, None),
    ]
    frame = nsys.read(write(tmp_path / "run", {made.NVTX: rows})).table("RANGES")
    assert ["inline", "registered", "both", "unnamed"] == frame["name"].tolist()


@pytest.mark.parametrize("column", ["text", "textId"])
def test_either_column_of_text_may_be_absent(tmp_path: Path, column: str) -> None:
    """Old exports have no textId, and all texts may be registered strings."""
    rows = made.without([made.event(0, 9, "step") | {"textId": "step"}], column)
    assert ["step"] == ranges(tmp_path, *rows)["name"].tolist()


def test_the_text_stays_as_written(tmp_path: Path) -> None:
    """PyTorch adds sequence numbers and sizes to names: cutting them is for the analyses."""
    text = "aten::mm, seq = 12, op_id = 3, sizes = [[2, 3], [3, 4]]"
    assert [text] == ranges(tmp_path, made.event(0, 9, text))["name"].tolist()


@every_form
def test_ranges_and_marks_are_told_apart(write: Write, tmp_path: Path) -> None:
    """Event types 59, 60 and 34 are push_pop, start_end and mark; names of threads and categories are no ranges."""
    types = {made.PUSH_POP: "push_pop", made.START_END: "start_end", made.MARK: "mark"}
    rows = [made.event(t, None if t == made.MARK else t + 5, f"type {t}", eventType=t) for t in (*types, 33, 39, 75)]
    frame = nsys.read(write(tmp_path / "run", {made.NVTX: rows})).table("RANGES")
    assert {f"type {t}": kind for t, kind in types.items()} == by_name(frame, "kind")
    assert {"type 59": 5, "type 60": 5, "type 34": 0} == by_name(frame, "dur_ns")


def test_names_alone_are_no_ranges(tmp_path: Path) -> None:
    """A capture whose NVTX events only name threads and domains has no ranges recorded."""
    rows = [made.event(0, None, "main", eventType=39), made.event(0, None, "domain", eventType=made.DOMAIN)]
    profile = made.read(tmp_path, {made.NVTX: rows})
    assert "RANGES" not in profile.loaders
    assert "RANGES" in [m.table for m in profile.missing]


def test_ranges_never_closed_end_with_the_capture(tmp_path: Path) -> None:
    """An open range lasts to the end of the recording; one that opened after it has no length."""
    rows = [made.event(100, None, "open"), made.event(CAPTURE_END + 5, None, "late"), made.event(7, 9, "closed")]
    expected = {"open": CAPTURE_END - 100, "late": 0, "closed": 2}
    assert expected == by_name(ranges(tmp_path, *rows), "dur_ns")


@every_form
def test_ranges_that_end_before_they_start_are_never_long(write: Write, tmp_path: Path) -> None:
    """A range whose end lies before its start, or whose start is absent, is handed on as impossible, not as open."""
    rows = [made.event(100, 90, "back"), made.event(5, 9, "fine"), {**made.event(5, 9, "lost"), "start": None}]
    tables = {**made.session(), made.NVTX: rows}
    frame = nsys.read(write(tmp_path / "run", tables)).loaders["RANGES"]()
    assert {"back": -10, "fine": 4, "lost": -1} == by_name(frame, "dur_ns")
    assert {"back": 0, "fine": 0, "lost": 0} == by_name(frame, "depth")


def test_a_range_of_an_impossible_length_encloses_nothing(tmp_path: Path) -> None:
    """A range that would last 146 years is no parent of those after it."""
    rows = [made.event(0, 2**62, "endless"), made.event(0, 100, "step"), made.event(5, 9, "inner")]
    frame = made.read(tmp_path, {made.NVTX: rows}).loaders["RANGES"]()
    depths = by_name(frame, "depth")
    assert (0, 1) == (depths["step"], depths["inner"])


def test_a_range_closed_on_another_thread_belongs_to_where_it_began(tmp_path: Path) -> None:
    """start_end ranges may end elsewhere (endGlobalTid)."""
    row = made.event(0, 9, tid=3, eventType=made.START_END, endGlobalTid=made.process(1) | 4)
    assert [3] == ranges(tmp_path, row)["thread"].tolist()


def test_domains_are_named_per_process(tmp_path: Path) -> None:
    """Domain 1 of one process is not domain 1 of another; 0 is the default; an unnamed one keeps its number."""
    rows = [
        made.event(0, None, "NCCL", pid=1, eventType=made.DOMAIN, domainId=1),
        made.event(0, None, "TorchOps", pid=2, eventType=made.DOMAIN, domainId=1),
        *(made.event(i, i + 1, f"{pid} {domain}", pid=pid, domainId=domain)
          for i, (pid, domain) in enumerate(((1, 1), (2, 1), (1, 0), (1, None), (2, 5)))),
    ]  # fmt: skip
    expected = {"1 1": "NCCL", "2 1": "TorchOps", "1 0": "", "1 None": "", "2 5": "domain 5"}
    assert expected == by_name(ranges(tmp_path, *rows), "domain")


# Depth


def test_depth_counts_the_enclosing_ranges(tmp_path: Path) -> None:
    """The step [0, 100) holds one [0, 40) and two [40, 100), which holds a and b; the next step nothing."""
    spans = {"step": (0, 100), "one": (0, 40), "two": (40, 100), "a": (40, 41), "b": (90, 100), "next": (100, 101)}
    rows = [made.event(start, end, name) for name, (start, end) in spans.items()]
    expected = {"step": 0, "one": 1, "two": 1, "a": 2, "b": 2, "next": 0}
    assert expected == by_name(ranges(tmp_path, *rows), "depth")


def test_depth_is_per_thread_and_domain(tmp_path: Path) -> None:
    """Ranges of other threads, processes and domains enclose nothing, nor do start_end ranges and marks."""
    changes = ({"tid": 2}, {"pid": 2}, {"domainId": 3}, {"eventType": made.START_END}, {"eventType": made.MARK})
    outer = [made.event(0, 100, "outer", **change) for change in changes]
    frame = ranges(tmp_path, *outer, made.event(10, 20, "inner"))
    assert 6 == len(frame)
    assert {0} == set(frame["depth"])


def test_equal_ranges_nest_in_the_order_of_the_export(tmp_path: Path) -> None:
    """Two ranges of the same times enclose one the other."""
    assert {"a": 0, "b": 1} == by_name(ranges(tmp_path, made.event(0, 9, "a"), made.event(0, 9, "b")), "depth")


def test_ranges_without_length_enclose_nothing(tmp_path: Path) -> None:
    """On a coarse clock short ranges have no length: in [0, 100) a, at 10, does not enclose b [10, 20).

    c, at 20, when b is over, and d, at 20, lie in the outer range alone; e, at 100, lies in none.
    """
    spans = {"outer": (0, 100), "a": (10, 10), "b": (10, 20), "c": (20, 20), "d": (20, 20), "e": (100, 100)}
    rows = [made.event(start, end, name) for name, (start, end) in spans.items()]
    expected = {"outer": 0, "a": 2, "b": 1, "c": 1, "d": 1, "e": 0}
    assert expected == by_name(ranges(tmp_path, *rows), "depth")


def nested(rng: np.random.Generator, start: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Random ranges that nest inside [start, end), some adjacent and some without length."""
    spans, at = [], start
    while depth and at < end:
        first = int(rng.integers(at, end))
        last = int(rng.integers(first, end + 1))
        spans += [(first, last), *nested(rng, first, last, depth - 1)]
        at = max(last, at + 1)
    return spans


def test_depth_is_that_of_brute_force(tmp_path: Path) -> None:
    """On random nested ranges of 3 threads the depth is the number of ranges open at the start.

    Open at s are those with start < s < end or, of those that start at s, the longer ones and, of equal
    ones, those before in the export.
    """
    rng = np.random.default_rng(3)
    spans = [(tid, *span) for tid in (1, 2, 3) for span in nested(rng, 0, 300, 4)]
    order = rng.permutation(len(spans))
    frame = ranges(tmp_path, *(made.event(s, e, f"{i}", tid=t) for i, (t, s, e) in enumerate(spans[k] for k in order)))
    columns = frame[["name", "thread", "start_ns", "dur_ns"]]
    rows = [(int(n), t, s, s + d) for n, t, s, d in columns.itertuples(index=False)]
    expected = [
        sum(u == t and b > s and (a < s or (a == s and (b > e or (b == e and m < n)))) for m, u, a, b in rows)
        for n, t, s, e in rows
    ]
    assert expected == frame["depth"].tolist()
    assert max(expected) > 2
