"""Threads, traces and stalls of HPCToolkit databases, what is said about them, and runs that have one (made files)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from readers import hpctoolkit_files as made
from readers import nsys_files as nsys
from readers.hpctoolkit_files import T0, Thread, entry, line, read, rows

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import hpctoolkit

MAIN = entry(1, "main thread")
TIME = {(1, "CPUTIME (sec)"): 1.0}


def threads(folder: Path, *identities: tuple[tuple[str, int], ...], values: made.Values = TIME) -> Profile:
    """A database of threads with these identities."""
    return read(folder, MAIN, threads=[Thread(identity, values) for identity in identities])


# Threads


def test_threads_are_called_by_what_tells_them_apart(tmp_path: Path) -> None:
    """MPI rank, thread, GPU context and stream; the node only if there are several."""
    one = (("NODE", 5), ("RANK", 1), ("THREAD", 0))
    stream = (("NODE", 5), ("RANK", 1), ("GPUCONTEXT", 1), ("GPUSTREAM", 7))
    device = (("NODE", 5), ("GPUDEVICE", 2), ("GPUCONTEXT", 1))
    table = threads(tmp_path / "a", one, stream, device, ()).table("THREADS")
    assert [
        (1, "cpu", "rank 1 thread 0", 1),
        (2, "gpu", "rank 1 GPU context 1 stream 7", 1),
        (3, "gpu", "GPU 2 context 1", None),
        (4, "cpu", "unnamed", None),
    ] == rows(table, "thread", "kind", "name", "mpi_rank")
    table = threads(tmp_path / "b", (("NODE", 5), ("THREAD", 0)), (("NODE", 6), ("THREAD", 0))).table("THREADS")
    assert ["node 5 thread 0", "node 6 thread 0"] == table["name"].tolist()


def test_idle_threads_are_threads(tmp_path: Path) -> None:
    """A thread without a sample is in THREADS and has no metric."""
    profile = read(tmp_path, MAIN, threads=[Thread((("THREAD", 0),), TIME), Thread((("THREAD", 1),))])
    assert [1, 2] == profile.table("THREADS")["thread"].tolist()
    assert [1] == profile.table("THREAD_METRICS")["thread"].tolist()


def test_metrics_of_threads_by_entry_point(tmp_path: Path) -> None:
    """Every thread's value below every entry point; the stream has none. Metrics have other numbers than in sums."""
    table = hpctoolkit.read(made.sample(tmp_path)).table("THREAD_METRICS")
    time = table[table["metric"] == "CPUTIME"]
    assert [(1, "main thread", "s", 3.0), (2, "application thread", "s", 1.0)] == rows(
        time, "thread", "entry", "unit", "inclusive"
    )
    assert {"GINS:STL_ANY": 12.0, "GINS:STL_GMEM": 12.0, "GXCOPY:H2D": 8e6} == {
        metric: table.loc[table["metric"] == metric, "inclusive"].sum()
        for metric in ("GINS:STL_ANY", "GINS:STL_GMEM", "GXCOPY:H2D")
    }


# Stalls


@pytest.mark.parametrize("spelling", ["GINS:STL_{}", "GCYCLES:STL:{}"])
def test_stalls_are_what_contexts_have_themselves(spelling: str, tmp_path: Path) -> None:
    """Of 10 waits for memory the line's own are 4 and the inlined line's 6; sums over reasons are no reason."""
    names = [spelling.format(reason) for reason in ("GMEM", "IDEP", "ANY", "NONE")]
    names += ["GCYCLES:STL", "GCYCLES:ISU:VEC"]
    values = {(node, names[0]): v for node, v in ((1, 10.0), (2, 10.0), (3, 6.0))} | {(1, n): 5.0 for n in names[1:]}
    tree = entry(1, "main thread", line(2, "a.cu", 1, line(3, "b.cu", 2)))
    table = read(tmp_path, tree, metrics=names, threads=[Thread(values=values)]).table("STALLS")
    assert [(-1, 1, "idep", 5.0), (-1, 2, "gmem", 4.0), (-1, 3, "gmem", 6.0)] == rows(
        table, "launch", "node", "reason", "value"
    )


# Traces


def trace(folder: Path, *elements: tuple[int, int]) -> Profile:
    """A database of one thread with a trace."""
    return read(folder, MAIN, threads=[Thread(values=TIME, trace=elements)])


def test_a_stretch_lasts_until_the_next(tmp_path: Path) -> None:
    """In 1 from 0 to 10 and from 10 to 30 (then idle until 35), and again from 35 on: that has no end."""
    profile = trace(tmp_path, (0, 1), (10, 1), (30, 0), (35, 1))
    assert [(0, 10, 1, False), (10, 20, 1, True), (35, 0, 1, False)] == rows(
        profile.table("TRACE"), "start_ns", "dur_ns", "node", "ended"
    )
    assert (T0, 35) == tuple(profile.capture[["t0_unix_ns", "dur_ns"]].iloc[0])


def test_traces_start_with_the_earliest(tmp_path: Path) -> None:
    """Thread 1 is seen from 0, thread 2 from 500, the stream from 1500 ns; the end of one is not that of the next."""
    table = hpctoolkit.read(made.sample(tmp_path)).table("TRACE")
    assert [
        (1, 0, 1000, 3, False),
        (1, 1000, 2000, 4, True),
        (1, 4000, 0, 4, False),
        (2, 500, 2000, 11, True),
        (3, 1500, 1000, 5, True),
    ] == rows(table, "thread", "start_ns", "dur_ns", "node", "ended")


def test_idleness_of_another_thread_ends_nothing(tmp_path: Path) -> None:
    """Thread 1 is last seen in 1; that thread 2, stored next, starts idle says nothing about it."""
    told = [Thread((("THREAD", 0),), TIME, ((0, 1),)), Thread((("THREAD", 1),), {}, ((0, 0), (5, 1), (9, 0)))]
    table = read(tmp_path, MAIN, threads=told).table("TRACE")
    assert [(1, 0, 0, False), (2, 5, 4, True)] == rows(table, "thread", "start_ns", "dur_ns", "ended")


def test_a_trace_of_idleness_alone_is_none(tmp_path: Path) -> None:
    """trace.db without a context has no rows and no clock, and what to record is said."""
    profile = trace(tmp_path, (0, 0))
    assert "TRACE" not in profile.loaders
    assert "TRACE" in [m.table for m in profile.missing]
    assert profile.capture["t0_unix_ns"].isna().all()


# What is said


def test_what_a_cpu_database_lacks(tmp_path: Path) -> None:
    """Without GPU metrics and traces, the options of hpcrun that record them are named."""
    profile = threads(tmp_path, (("THREAD", 0),))
    assert {
        "CALL_METRICS.GPUOP": "hpcrun -e gpu=nvidia,pc",
        "STALLS": "hpcrun -e gpu=nvidia,pc",
        "TRACE": "hpcrun -t",
    } == {m.table: m.record for m in profile.missing}
    assert () == profile.notes


def test_what_a_gpu_database_lacks(tmp_path: Path) -> None:
    """A metric that is listed and has no value was not recorded: no CPU time; kernels without samples, no stalls."""
    names = ["GKER (sec)", "CPUTIME (sec)", "GINS:STL_GMEM"]
    profile = read(tmp_path, MAIN, metrics=names, threads=[Thread(values={(1, "GKER (sec)"): 1.0})])
    assert {
        "CALL_METRICS.CPUTIME": "hpcrun -e CPUTIME",
        "STALLS": "hpcrun -e gpu=nvidia,pc",
        "TRACE": "hpcrun -t",
    } == {m.table: m.record for m in profile.missing}


def test_what_is_missing_of_a_table_is_said_of_a_run(tmp_path: Path) -> None:
    """A run with CALL_METRICS still says that these have no CPU time."""
    run = perfkit.load(made.database(tmp_path, [MAIN], ["GKER (sec)"], [Thread(values={(1, "GKER (sec)"): 1.0})]))
    assert "no CPU time of the call paths" in [m.what for m in run.missing]


def test_a_database_that_does_not_add_up_is_read_with_a_note(tmp_path: Path) -> None:
    """Entry points have 3 of 4 s: both numbers are said. A difference of rounding (1e-12) is none."""
    key, whole = (1, "CPUTIME (sec)"), (0, "CPUTIME (sec)")
    profile = read(tmp_path / "a", MAIN, summary={key: 3.0, whole: 4.0})
    assert [3.0] == profile.table("CALL_METRICS")["inclusive"].tolist()
    (note,) = profile.notes
    assert note.startswith("CPUTIME: the entry points have 3 s together, the whole program 4: ")
    assert () == read(tmp_path / "b", MAIN, summary={key: 3.0, whole: 3.0 + 3e-12}).notes


def test_at_most_three_metrics_that_do_not_add_up_are_listed(tmp_path: Path) -> None:
    """Of five metrics that do not add up three are listed and two are counted."""
    names = [f"M{i}" for i in range(5)]
    summary = {(node, name): float(1 + node) for name in names for node in (0, 1)}
    notes = read(tmp_path, MAIN, metrics=names, summary=summary).notes
    assert ["M0: the", "M1: the", "M2: the", "2 more "] == [note[:7] for note in notes]


def test_lost_samples_are_said(tmp_path: Path) -> None:
    """3 of 4 expected samples were taken, and 1 was dropped; all taken is worth no word."""
    values = {(1, "GSAMP:TOT"): 3.0, (1, "GSAMP:EXP"): 4.0, (1, "GSAMP:DRP"): 1.0}
    names = ["GSAMP:TOT", "GSAMP:EXP", "GSAMP:DRP"]
    assert (
        "75.0 % of the expected samples of GPU instructions were taken (3 of 4)",
        "samples of GPU instructions that were dropped: 1",
    ) == read(tmp_path / "a", MAIN, metrics=names, threads=[Thread(values=values)]).notes
    all_taken = {(1, "GSAMP:TOT"): 4.0, (1, "GSAMP:EXP"): 4.0}
    assert () == read(tmp_path / "b", MAIN, metrics=names, threads=[Thread(values=all_taken)]).notes


def test_a_simulated_database_says_so(tmp_path: Path) -> None:
    """What the database says of itself becomes a note."""
    profile = read(tmp_path, MAIN, threads=[Thread(values=TIME)], description="SIMULATED by a test")
    assert ("simulated, not measured: by a test",) == profile.notes


# Files and runs


@pytest.mark.parametrize("absent", ["cct.db", "trace.db"])
def test_files_a_database_can_do_without(absent: str, tmp_path: Path) -> None:
    """cct.db holds what profile.db holds and trace.db only traces: the other tables are the same without them."""
    paths = [made.sample(tmp_path / name) for name in ("whole", "part")]
    (paths[1] / absent).unlink()
    whole, part = (hpctoolkit.read(path) for path in paths)
    assert (absent == "cct.db") == any(note.startswith("cct.db is missing") for note in part.notes)
    for table in set(whole.loaders) - {"TRACE"}:
        assert whole.table(table).equals(part.table(table))


def test_an_empty_file_of_another_name_is_nothing(tmp_path: Path) -> None:
    """HPCToolkit leaves an empty hpctoolkit.db beside the others."""
    (made.sample(tmp_path) / "hpctoolkit.db").touch()
    assert hpctoolkit.sniff(tmp_path)
    assert 11 == len(hpctoolkit.read(tmp_path).table("CALLTREE"))


def test_meta_db_stands_for_its_database(tmp_path: Path) -> None:
    """The path of meta.db is claimed and gives what its folder gives."""
    path = made.sample(tmp_path) / "meta.db"
    assert hpctoolkit.sniff(path)
    assert hpctoolkit.read(tmp_path).table("CALL_METRICS").equals(perfkit.load(path).call_metrics)


def test_a_database_beside_other_captures(tmp_path: Path) -> None:
    """A folder with an Nsight Systems export and a database is one run; the measurements are left out with a note."""
    nsys.sqlite(tmp_path / "run.sqlite", nsys.capture())
    made.sample(tmp_path / "hpctoolkit-app-database")
    measured(tmp_path / "hpctoolkit-app-measurements")
    run = perfkit.load(tmp_path)
    assert {"nsys", "hpctoolkit"} == {p.reader for p in run.profiles}
    assert 11 == len(run.calltree)
    assert len(run.kernels) > 0
    assert any("left out what is no profile (hpctoolkit-app-measurements)" in note for note in run.notes)


def measured(folder: Path) -> Path:
    """What `hpcrun` leaves."""
    folder.mkdir(parents=True)
    (folder / "app-000000-000-7f0100-42-0.hpcrun").write_bytes(b"HPCRUN-profile____")
    return folder


@pytest.mark.parametrize("given", ["hpctoolkit-app-measurements", "."])
def test_measurements_are_not_a_database(given: str, tmp_path: Path) -> None:
    """What to run is said, whether the measurements or the folder around them are given."""
    folder = measured(tmp_path / "hpctoolkit-app-measurements")
    with pytest.raises(ReadError, match=r"app-measurements: these are HPCToolkit's measurements.*`hpcprof -o DATABASE"):
        perfkit.load(tmp_path / given)
    assert not hpctoolkit.sniff(folder)


def test_tables_are_made_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening makes no tree; asking for all tables makes it once."""
    made_trees: list[Any] = []
    plain = hpctoolkit.calltree
    monkeypatch.setattr(hpctoolkit, "calltree", lambda *a: made_trees.append(a) or plain(*a))
    profile = hpctoolkit.read(made.sample(tmp_path))
    assert [] == made_trees
    for name in profile.loaders:
        profile.table(name)
    assert 1 == len(made_trees)


def test_meta_db_is_given_back(tmp_path: Path) -> None:
    """Once the tree is made nothing of meta.db stays in memory: here 5 MB of description."""
    path = made.database(tmp_path, [MAIN], threads=[Thread(values=TIME)], description="x" * 5_000_000)
    tracemalloc.start()
    profile = hpctoolkit.read(path)
    assert tracemalloc.get_traced_memory()[0] > 5_000_000
    profile.table("CALLTREE")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000_000
