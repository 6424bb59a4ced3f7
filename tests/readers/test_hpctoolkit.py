"""HPCToolkit databases: what is claimed, and the tables by values made by hand."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import hpctoolkit_files as made
from readers import nsys_files as nsys
from readers.hpctoolkit_files import T0, Context, Thread, entry, function, instruction, line, loop, read, rows

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import hpctoolkit


def calltree(folder: Path, *contexts: Context) -> pd.DataFrame:
    """CALLTREE of contexts below one entry point, by node."""
    return read(folder, entry(1, "main thread", *contexts)).table("CALLTREE").set_index("node")


# Contexts


def test_every_entry_point_is_a_root(tmp_path: Path) -> None:
    """Hatchet's reader drops all but the main thread; here what the others call is there, under their names."""
    tree = hpctoolkit.read(made.sample(tmp_path)).table("CALLTREE")
    roots = tree[tree["parent"].isna()]
    assert [(1, "entry", "main thread", 0), (10, "entry", "application thread", 0)] == rows(
        roots, "node", "kind", "name", "depth"
    )
    assert {"main thread": 7, "application thread": 4} == tree["entry"].value_counts().to_dict()


def test_contexts_are_below_what_encloses_them(tmp_path: Path) -> None:
    """Parent and depth follow the tree, whatever the numbers: 9 is above 2, which is above 5 and 3."""
    tree = calltree(tmp_path, function(9, "f", line(2, "a.c", 1, function(5, "g"), function(3, "h"))))
    assert {1: (None, 0), 9: (1, 1), 2: (9, 2), 5: (2, 3), 3: (2, 3)} == dict(
        zip(tree.index, rows(tree, "parent", "depth"), strict=True)
    )


def test_what_contexts_are_called(tmp_path: Path) -> None:
    """Functions keep their whole name; lines and loops go by file and line, instructions by module and offset."""
    name = "void k<float, 4>(std::array<char*, 3ul>) [libx.so]"
    step = line(3, "/src/a.cu", 7, instruction(5, "/lib/libx.so", 0x1A0), copied=False)
    tree = calltree(tmp_path, function(2, name, step, loop(4, "/src/a.cu", 6, module="/lib/libx.so", offset=16)))
    assert [name, "a.cu:7", "loop at a.cu:6", "libx.so@0x1a0"] == tree.loc[[2, 3, 4, 5], "name"].tolist()
    assert ["function", "line", "loop", "instruction"] == tree.loc[[2, 3, 4, 5], "kind"].tolist()
    assert [("/src/a.cu", 7, None), ("/src/a.cu", 6, "/lib/libx.so")] == rows(
        tree.loc[[3, 4]], "file", "line", "module"
    )


def test_code_without_sources_has_no_file(tmp_path: Path) -> None:
    """HPCToolkit writes file [libx.so] and line 0 there: no source, and a loop is told from others by its address."""
    nowhere = loop(3, "[libx.so]", 0, line(4, "[libx.so]", 0), module="/lib/libx.so", offset=0xB10)
    tree = calltree(tmp_path, function(2, "f", nowhere, file="[libx.so]", module="/lib/libx.so"))
    assert [("f", None, None), ("loop at libx.so@0xb10", None, None), ("[libx.so]", None, None)] == rows(
        tree.loc[[2, 3, 4]], "name", "file", "line"
    )


def test_a_file_without_a_line_keeps_its_name(tmp_path: Path) -> None:
    """Line 0 is no line: neither in the name nor in the column."""
    tree = calltree(tmp_path, line(2, "/src/a.c", 0))
    assert [("a.c", "/src/a.c", None)] == rows(tree.loc[[2]], "name", "file", "line")


def test_a_copied_file_is_where_it_was_copied_from(tmp_path: Path) -> None:
    """The database's copy src/job/a.py is of /job/a.py; a file that is not copied may be called src/... as well."""
    tree = calltree(tmp_path, line(2, "src/job/a.py", 3, copied=True), line(3, "src/b.c", 4))
    assert ["/job/a.py", "src/b.c"] == tree.loc[[2, 3], "file"].tolist()


def test_functions_without_a_name_are_called_by_what_is_known(tmp_path: Path) -> None:
    """By module and offset, else by file and line, else as unknown."""
    tree = calltree(
        tmp_path,
        function(2, "", module="/lib/libx.so", offset=0x20, file="/src/a.c", line=1),
        function(3, "", file="/src/a.c", line=9),
        Context(4),
    )
    assert ["libx.so@0x20", "a.c:9", "<unknown function>"] == tree.loc[[2, 3, 4], "name"].tolist()


def test_gpu_operations_are_no_functions(tmp_path: Path) -> None:
    """The functions that stand for GPU operations are kind gpu_operation; a Python <listcomp> is a function."""
    tree = calltree(tmp_path, function(2, "<gpu copyin>"), function(3, "<listcomp>", module="<logical python>"))
    assert ["gpu_operation", "function"] == tree.loc[[2, 3], "kind"].tolist()
    assert ["entry", "function", "gpu_operation"] == tree["kind"].cat.categories.tolist()


def test_lexical_types_of_later_versions(tmp_path: Path) -> None:
    """A type that does not exist yet is taken for what the context has: a function, a line, an instruction."""
    tree = calltree(
        tmp_path, Context(2, 9, file="/a.c", line=4), Context(3, 9, module="/lib/x.so", offset=1), Context(4, 9)
    )
    assert [("line", "a.c:4"), ("instruction", "x.so@0x1"), ("function", "<unknown function>")] == rows(
        tree.loc[[2, 3, 4]], "kind", "name"
    )


def test_names_in_any_script(tmp_path: Path) -> None:
    """Texts are UTF-8; bytes that are not are replaced, so that such a name stays apart from none."""
    names = ["größe(日本語)", "caf\udce9"]
    path = line(4, "/src/データ/ж.py", 3)
    tree = calltree(tmp_path / "überlauf", *(function(2 + i, name) for i, name in enumerate(names)), path)
    assert ["größe(日本語)", "caf\ufffd", "ж.py:3"] == tree.loc[[2, 3, 4], "name"].tolist()


def test_a_deep_tree(tmp_path: Path) -> None:
    """5,000 functions, each called by the one before, need no recursion."""
    tree = read(tmp_path, made.chain(5000)).table("CALLTREE")
    assert 5001 == len(tree)
    assert list(range(5001)) == tree["depth"].tolist()


@pytest.mark.parametrize("minor", [1, 7])
def test_later_minor_versions_with_longer_structures(minor: int, tmp_path: Path) -> None:
    """How far entries of arrays are apart is read from the file, and the minor version is no reason to refuse."""
    plain, longer = (hpctoolkit.read(made.sample(tmp_path / str(pad), minor=minor, pad=pad)) for pad in (0, 24))
    assert [f"database 4.{minor}"] == longer.capture["tool_version"].tolist()
    assert list(plain.loaders) == list(longer.loaders)
    for table in plain.loaders:
        pd.testing.assert_frame_equal(plain.table(table), longer.table(table), check_exact=True)


# Metrics


def metrics(profile: Profile) -> dict[tuple[int, str], tuple[float, float]]:
    """Inclusive and exclusive value by node and metric."""
    frame = profile.table("CALL_METRICS")
    told = zip(frame["inclusive"].tolist(), frame["exclusive"].tolist(), strict=True)
    return dict(zip(zip(frame["node"], frame["metric"], strict=True), told, strict=True))


def test_exclusive_is_what_the_children_do_not_have(tmp_path: Path) -> None:
    """Of 5 s below the main thread 2 s are in the function's first line and 3 s in the second: in it nothing is."""
    tree = entry(1, "main thread", function(2, "f", line(3, "a.c", 1), line(4, "a.c", 2)))
    values = {
        (1, "CPUTIME (sec)"): 5.0,
        (2, "CPUTIME (sec)"): 5.0,
        (3, "CPUTIME (sec)"): 2.0,
        (4, "CPUTIME (sec)"): 3.0,
    }
    found = metrics(read(tmp_path, tree, threads=[Thread(values=values)]))
    assert {1: (5.0, 0.0), 2: (5.0, 0.0), 3: (2.0, 2.0), 4: (3.0, 3.0)} == {node: v for (node, _), v in found.items()}


def test_what_hidden_contexts_have_is_that_of_the_one_above(tmp_path: Path) -> None:
    """profile.db may have values of an instruction (9) that the tree leaves out: they are its line's own."""
    values = {(n, "GINS"): v for n, v in ((1, 7.0), (2, 7.0), (3, 4.0), (9, 4.0))}
    profile = read(
        tmp_path,
        entry(1, "main thread", function(2, "f", line(3, "a.cu", 1))),
        metrics=["GINS"],
        threads=[Thread(values=values)],
    )
    assert {1: (7.0, 0.0), 2: (7.0, 3.0), 3: (4.0, 4.0)} == {node: v for (node, _), v in metrics(profile).items()}


def test_a_rest_of_rounding_is_nothing(tmp_path: Path) -> None:
    """0.3 - (0.1 + 0.2) is -5.6e-17 in doubles: exactly 0 is meant."""
    tree = entry(1, "main thread", line(2, "a.c", 1), line(3, "a.c", 2))
    values = {(1, "CPUTIME (sec)"): 0.3, (2, "CPUTIME (sec)"): 0.1, (3, "CPUTIME (sec)"): 0.2}
    assert 0.3 != 0.1 + 0.2
    assert 0.0 == metrics(read(tmp_path, tree, threads=[Thread(values=values)]))[1, "CPUTIME"][1]


@pytest.mark.parametrize(
    ("text", "name", "unit", "stored", "value"),
    [
        ("CPUTIME (sec)", "CPUTIME", "s", 2.0, 2.0),
        ("CPUTIME (usec)", "CPUTIME", "s", 2e6, 2.0),
        ("REALTIME (S)", "REALTIME", "s", 2.0, 2.0),
        ("T (msec)", "T", "s", 2e3, 2.0),
        ("T (nsec)", "T", "s", 2e9, 2.0),
        ("GXCOPY:H2D (B)", "GXCOPY:H2D", "bytes", 8.0, 8.0),
        ("GXCOPY:H2D (b)", "GXCOPY:H2D", "bytes", 8.0, 8.0),
        ("GPAGE:UMPCNT (bytes)", "GPAGE:UMPCNT", "bytes", 8.0, 8.0),
        ("GSAMP:PER (cyc)", "GSAMP:PER", "cycles", 8.0, 8.0),
        ("GSAMP:TOT", "GSAMP:TOT", "samples", 8.0, 8.0),
        ("GINS:STL_GMEM", "GINS:STL_GMEM", "instructions", 8.0, 8.0),
        ("GCYCLES:STL", "GCYCLES:STL", "cycles", 8.0, 8.0),
        ("GKER:COUNT", "GKER:COUNT", "count", 8.0, 8.0),
        ("ENERGY (J)", "ENERGY (J)", "count", 8.0, 8.0),
    ],
)
def test_units(text: str, name: str, unit: str, stored: float, value: float, tmp_path: Path) -> None:
    """The unit comes from the parentheses, in any case, else from the metric; times are in seconds."""
    profile = read(tmp_path, entry(1, "main thread"), metrics=[text], threads=[Thread(values={(1, text): stored})])
    for table in ("CALL_METRICS", "THREAD_METRICS"):
        assert [(name, unit, pytest.approx(value, rel=1e-15))] == rows(
            profile.table(table), "metric", "unit", "inclusive"
        )


def test_two_metrics_that_differ_in_their_unit_stay_apart(tmp_path: Path) -> None:
    """The second keeps its unit in its name."""
    names = ["T (sec)", "T (usec)"]
    values = {(1, name): 5.0 for name in names}
    profile = read(tmp_path, entry(1, "main thread"), metrics=names, threads=[Thread(values=values)])
    assert {(1, "T"): (5.0, 5.0), (1, "T (usec)"): (5.0, 5.0)} == metrics(profile)


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ([(0, "$$"), (1, "$$"), (0, "($$^2)")], {(1, "CPUTIME"): (6.0, 6.0)}),
        ([(1, "$$"), (0, "$$")], {}),
        ([(0, "($$^2)"), (0, "$$")], {}),
    ],
)
def test_statistics_beside_the_sum_are_no_metrics(ways: list[tuple[int, str]], found: object, tmp_path: Path) -> None:
    """hpcprof can store minima and sums of squares too: of two threads of 3 s each, only the plain sum is taken.

    The writer stores the values under the first of the ways to combine threads.
    """
    told = [Thread(values={(1, "CPUTIME (sec)"): 3.0})] * 2
    assert found == metrics(read(tmp_path, entry(1, "main thread"), threads=told, combine=ways))


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
    assert {"CALL_METRICS.CPUTIME": "hpcrun -e CPUTIME", "STALLS": "hpcrun -e gpu=nvidia,pc", "TRACE": "hpcrun -t"} == {
        m.table: m.record for m in profile.missing
    }


def test_what_is_missing_of_a_table_is_said_of_a_run(tmp_path: Path) -> None:
    """A run with CALL_METRICS still says that these have no CPU time."""
    run = perfkit.load(made.database(tmp_path, [MAIN], ["GKER (sec)"], [Thread(values={(1, "GKER (sec)"): 1.0})]))
    assert "How much CPU time did each call path take?" in [m.what for m in run.missing]


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
    """Measurements are left out with a note, and so is a database without a kernel of the export beside it."""
    nsys.sqlite(tmp_path / "run.sqlite", nsys.capture())
    made.sample(tmp_path / "hpctoolkit-app-database")
    measured(tmp_path / "hpctoolkit-app-measurements")
    run = perfkit.load(tmp_path)
    assert {"nsys"} == {p.reader for p in run.profiles}
    assert any("hpctoolkit-app-database" in note and "kernel" in note for note in run.notes), run.notes
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
