"""The fuzzer finds what is planted, and its findings of before stay mended."""

import itertools
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import extras
import pytest
from fuzz import execution, families
from fuzz.__main__ import described
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import nsys_files, torch_files

import perfkit
from perfkit.errors import PerfkitError

MUTANTS = int(os.environ.get("PERFKIT_MUTANTS", "10"))  # of a family whose share is 1
TEN_YEARS_NS = 3652 * 86400 * 10**9

generated = settings(max_examples=25, deadline=None, derandomize=True, database=None)


@pytest.fixture(autouse=True)
def _uncached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_CACHE", "off")


@pytest.fixture(scope="module")
def pool() -> Iterator[execution.Pool]:
    """A process that loads the mutants, so that none ends the tests."""
    with execution.Pool() as pool:
        yield pool


@pytest.mark.parametrize("family", families.FAMILIES)
def test_no_mutant_breaks_a_reader(family: str, pool: execution.Pool) -> None:
    """Each mutant is refused by name, or loads without what cannot be and without losing rows unnoticed."""
    count = max(5, round(MUTANTS * families.FAMILIES[family].share))
    groups: dict[str, list[execution.Outcome]] = {}
    for outcome in pool.outcomes(itertools.islice(execution.tasks([family]), count)):
        for group in outcome.defects:
            groups.setdefault(group, []).append(outcome)
    lines = [described(family, group, outcomes) for group, outcomes in groups.items()]
    assert not lines, "\n" + "\n".join(lines)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_unchanged_seeds_load(family: str) -> None:
    if family == "ncu_rep" and not families.shelf():
        pytest.skip("the made report is a container without results")
    if family == "ncu_rep":
        extras.require("ncu_report")
    names = [seed.name for seed in families.seeds(family)]
    assert any(execution.pristine(family, name)[0].tables for name in names), (
        f"none of {names} loads"
    )


@pytest.mark.parametrize(
    "family", [name for name, family in families.FAMILIES.items() if family.oracle]
)
def test_the_oracle_agrees_on_unchanged_seeds(family: str) -> None:
    """What the oracle counts in the first, made seed is what perfkit returns, so that it can judge the mutants."""
    name = families.seeds(family)[0].name
    read, judged = execution.pristine(family, name)
    assert judged, f"{name}: the oracle judges nothing"
    assert any(rows for rows, _ in judged.values()), f"{name}: nothing to count in {list(judged)}"
    for key, (rows, total) in judged.items():
        assert execution.actual(read.tables, key)[0] == rows
        assert total is None or execution.actual(read.tables, key)[1] == pytest.approx(total)


def test_a_worker_notices_each_fault() -> None:
    """Exceptions, large allocations, endless loops and deaths are attributed to their input; the next one is judged."""
    faults = {
        "raise": "KeyError",
        "grow": "memory",
        "peak": "memory peak",
        "spin": "slow",
        "abort": "died-signal6",
    }
    tasks = [task for fault in faults for task in ((f"fault:{fault}", 0), ("smi_dmon", 0))]
    with execution.Pool(
        cpu=3, memory=2**28
    ) as pool:  # to touch 2 GiB took 5 s of CPU on a busy machine
        outcomes = list(pool.outcomes(tasks))
    assert [outcome.family for outcome in outcomes] == [family for family, _ in tasks]
    for outcome, group in zip(outcomes[::2], faults.values(), strict=True):
        assert [key for key in outcome.defects if key.startswith(group)], (
            f"{outcome.family}: {outcome.defects}"
        )
    assert {outcome.status for outcome in outcomes[1::2]} <= {"loaded", "refused"}


# Generated files

whole = st.one_of(
    st.integers(0, 10**6),
    st.sampled_from(
        [None, -1, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), TEN_YEARS_NS, TEN_YEARS_NS * 2]
    ),
)
microseconds = st.one_of(
    st.integers(0, 10**6),
    st.floats(0, 1e6, width=32),
    st.sampled_from([-1, -0.5, 1e300, 2**53, 2**63, 2**64, 10**40, 3.2e17]),
)


def is_legal(start: int | None, dur: int | None) -> bool:
    return (
        start is not None
        and dur is not None
        and abs(start) <= TEN_YEARS_NS
        and 0 <= dur <= TEN_YEARS_NS
    )


def loaded(path: Path, table: str) -> tuple[Any, tuple[str, ...]] | None:
    """The rows of a table and the notes of the run; None if the file is refused by name."""
    try:
        run = perfkit.load(path)
        rows = run.table(table)
        return rows, run.notes
    except PerfkitError as e:
        if path.name not in str(e):
            raise
        return None


@generated
@given(st.lists(st.tuples(whole, whole), min_size=1, max_size=8))
def test_kernels_of_nsys_are_the_rows_that_can_be(
    rows: list[tuple[int | None, int | None]],
) -> None:
    """KERNELS holds rows of the export whose times can be, unchanged; a note counts the others.

    Rows that cannot be beside each other, such as overlapping kernels of a stream, are among the others.
    """
    with tempfile.TemporaryDirectory() as folder:
        kernels: list[dict[str, Any]] = [
            nsys_files.kernel(0, 0) | {"start": start, "end": end} for start, end in rows
        ]
        path = nsys_files.sqlite(
            Path(folder) / "run.sqlite", {**nsys_files.session(), nsys_files.KERNEL: kernels}
        )
        found = loaded(path, "KERNELS")
    durations = [(start, None if None in (start, end) else end - start) for start, end in rows]  # type: ignore[operator]
    expected = sorted(dur for start, dur in durations if dur is not None and is_legal(start, dur))
    if found is None:
        assert len(expected) < len(rows), "refused although each row can be"
        return
    kept = found[0]["dur_ns"].tolist()
    assert not Counter(kept) - Counter(dur for _, dur in durations), (
        "a row that the export does not hold"
    )
    assert len(kept) == len(rows) or found[1], "rows left out without a note"


@generated
@given(st.lists(st.tuples(microseconds, microseconds), min_size=1, max_size=8))
def test_kernels_of_a_trace_are_the_events_that_can_be(events: list[tuple[float, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = torch_files.trace(*(torch_files.kernel("k", ts, dur) for ts, dur in events))
        path = torch_files.printed(Path(folder) / "trace.json", made)
        found = loaded(path, "KERNELS")
    likely = [
        (ts, dur)
        for ts, dur in events
        if 0 <= dur * 1000 <= TEN_YEARS_NS and ts * 1000 < TEN_YEARS_NS
    ]
    if found is None:
        assert len(likely) < len(events), "refused although each event can be"
        return
    frame, notes = found
    assert len(frame) <= len(events)
    assert (frame["dur_ns"] >= 0).all()
    assert (frame["dur_ns"] <= TEN_YEARS_NS).all()
    assert len(frame) == len(events) or notes, "events left out without a note"
    if len(likely) == len(events) == len(frame) and all(ts >= 0 for ts, _ in events):
        expected = sorted(round(dur * 1000) for _, dur in events)
        assert all(abs(a - b) <= 1 for a, b in zip(expected, sorted(frame["dur_ns"]), strict=True))


SHELF = families.shelf()
BROKEN = sorted((SHELF / "broken").glob("*/*")) if SHELF else []
DESCRIBED = ("INFO.txt", "perfkit.toml")  # what stands beside an input
ABSENT = pytest.param(Path(), marks=pytest.mark.skip(reason=extras.CAPTURES))
INPUTS = [path for path in BROKEN if path.name not in DESCRIBED] or [ABSENT]
# What a note says of values or rows that are not in the tables.
LEFT_OUT = re.compile(
    r"left out|leaves? out|missing|incomplete|ends within|(is|was|may be) cut|no longer|not (there|the files|recorded)|"
    r"ignored|replaced"
)


@pytest.mark.parametrize("given", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
@pytest.mark.sampled(4)
def test_a_broken_file_is_refused_or_loads_without_what_cannot_be(
    given: Path, pool: execution.Pool
) -> None:
    """perfkit names the file that it refuses; of one that it loads it leaves out what cannot be, and says so."""
    outcome = next(iter(pool.outcomes([(f"path:{given}", 0)])))
    defects = "\n".join(f"{group}\n{detail}" for group, detail in outcome.defects.items())
    assert not defects, f"\n{defects}"
    if outcome.status == "refused":
        named = (str(given), str(given.with_name("perfkit.toml")))
        assert outcome.refusal.startswith(named), outcome.refusal
        assert outcome.refusal.isprintable(), outcome.refusal
    if outcome.status == "loaded" and re.search(r"--(inv|oracle)-", given.parent.name):
        assert any(map(LEFT_OUT.search, outcome.notes)), (
            f"no note says what was left out: {outcome.notes}"
        )
