"""HPCToolkit databases: what is claimed, the tables by values made by hand, and what is damaged or cut."""

import struct
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frames import known as rows
from readers import hpctoolkit_files as made
from readers import nsys_files as nsys
from readers.hpctoolkit_files import (
    T0,
    Context,
    Thread,
    entry,
    function,
    instruction,
    line,
    loop,
    read,
)

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import hpctoolkit

MAIN = entry(1, "main thread")
TIME = {(1, "CPUTIME (sec)"): 1.0}


def calltree(folder: Path, *contexts: Context) -> pd.DataFrame:
    return read(folder, entry(1, "main thread", *contexts)).table("CALLTREE").set_index("node")


def test_contexts_are_below_what_encloses_them(tmp_path: Path) -> None:
    # Hatchet's reader drops all but the main thread; here what the others call is there, under their names.
    tree = hpctoolkit.read(made.sample(tmp_path)).table("CALLTREE")
    roots = [(1, "entry", "main thread", 0), (10, "entry", "application thread", 0)]
    assert roots == rows(tree[tree["parent"].isna()], "node", "kind", "name", "depth")
    assert {"main thread": 7, "application thread": 4} == tree["entry"].value_counts().to_dict()
    # Parent and depth follow the tree, whatever the numbers.
    tree = calltree(
        tmp_path / "b", function(9, "f", line(2, "a.c", 1, function(5, "g"), function(3, "h")))
    )
    found = dict(zip(tree.index, rows(tree, "parent", "depth"), strict=True))
    assert {1: (None, 0), 9: (1, 1), 2: (9, 2), 5: (2, 3), 3: (2, 3)} == found


def test_names_and_kinds_of_contexts(tmp_path: Path) -> None:
    name = "void k<float, 4>(std::array<char*, 3ul>) [libx.so]"  # functions keep their whole name
    step = line(3, "/src/a.cu", 7, instruction(5, "/lib/libx.so", 0x1A0), copied=False)
    tree = calltree(
        tmp_path / "a",
        function(2, name, step, loop(4, "/src/a.cu", 6, module="/lib/libx.so", offset=16)),
    )
    assert [
        ("function", name, None, None, None),
        ("line", "a.cu:7", "/src/a.cu", 7, None),
        ("loop", "loop at a.cu:6", "/src/a.cu", 6, "/lib/libx.so"),
        ("instruction", "libx.so@0x1a0", None, None, "/lib/libx.so"),
    ] == rows(tree.loc[[2, 3, 4, 5]], "kind", "name", "file", "line", "module")
    # HPCToolkit writes file [libx.so] and line 0 for no source: a loop is told from others by its address.
    nowhere = loop(3, "[libx.so]", 0, line(4, "[libx.so]", 0), module="/lib/libx.so", offset=0xB10)
    unknown = function(2, "f", nowhere, file="[libx.so]", module="/lib/libx.so")
    tree = calltree(tmp_path / "b", unknown, line(5, "/src/a.c", 0))
    assert [
        *(("f", None, None), ("loop at libx.so@0xb10", None, None), ("[libx.so]", None, None)),
        ("a.c", "/src/a.c", None),  # a file without a line keeps its name
    ] == rows(tree.loc[[2, 3, 4, 5]], "name", "file", "line")
    # The database's copy src/job/a.py is of /job/a.py; a file that is not copied may be called src/... as well.
    tree = calltree(tmp_path / "c", line(2, "src/job/a.py", 3, copied=True), line(3, "src/b.c", 4))
    assert ["/job/a.py", "src/b.c"] == tree.loc[[2, 3], "file"].tolist()
    located = function(2, "", module="/lib/libx.so", offset=0x20, file="/src/a.c", line=1)
    tree = calltree(tmp_path / "a", located, function(3, "", file="/src/a.c", line=9), Context(4))
    assert ["libx.so@0x20", "a.c:9", "<unknown function>"] == tree.loc[[2, 3, 4], "name"].tolist()
    # The functions that stand for GPU operations are none; a Python <listcomp> is one.
    tree = calltree(
        tmp_path / "b",
        function(2, "<gpu copyin>"),
        function(3, "<listcomp>", module="<logical python>"),
    )
    assert ["gpu_operation", "function"] == tree.loc[[2, 3], "kind"].tolist()
    assert ["entry", "function", "gpu_operation"] == tree["kind"].cat.categories.tolist()
    # Texts are UTF-8; bytes that are not are replaced, so that such a name stays apart from none.
    names = (function(2, "größe(日本語)"), function(3, "caf\udce9"), line(4, "/src/データ/ж.py", 3))
    tree = calltree(tmp_path / "überlauf", *names)
    assert ["größe(日本語)", "caf\ufffd", "ж.py:3"] == tree.loc[[2, 3, 4], "name"].tolist()


def test_versions_and_files_of_a_database(tmp_path: Path) -> None:
    for minor in [1, 7]:
        plain, longer = (
            hpctoolkit.read(made.sample(tmp_path / str(pad), minor=minor, pad=pad))
            for pad in (0, 24)
        )
        assert [f"database 4.{minor}"] == longer.capture["tool_version"].tolist()
        assert list(plain.loaders) == list(longer.loaders)
        for table in plain.loaders:
            pd.testing.assert_frame_equal(plain.table(table), longer.table(table), check_exact=True)
    for absent in ["cct.db", "trace.db"]:
        paths = [made.sample(tmp_path / name) for name in ("whole", "part")]
        (paths[1] / absent).unlink()
        whole, part = (hpctoolkit.read(path) for path in paths)
        assert (absent == "cct.db") == any(
            note.startswith("cct.db is missing") for note in part.notes
        )
        for table in set(whole.loaders) - {"TRACE"}:
            assert whole.table(table).equals(part.table(table))


def metrics(
    folder: Path, root: Context, values: dict[Any, float], **rest: Any
) -> dict[Any, tuple[float, float]]:
    """Inclusive and exclusive value by node and metric of one thread with these values; by node where they are."""
    metric = rest.get("metrics", ["CPUTIME (sec)"])[0]
    whole = {
        key if isinstance(key, tuple) else (key, metric): value for key, value in values.items()
    }
    frame = read(folder, root, threads=[Thread(values=whole)], **rest).table("CALL_METRICS")
    told = {
        (node, name): pair
        for node, name, *pair in rows(frame, "node", "metric", "inclusive", "exclusive")
    }
    return {key if whole == values else key[0]: tuple(pair) for key, pair in told.items()}


def test_exclusive_is_what_the_children_do_not_have(tmp_path: Path) -> None:
    tree = entry(1, "main thread", function(2, "f", line(3, "a.c", 1), line(4, "a.c", 2)))
    found = metrics(tmp_path / "a", tree, {1: 5.0, 2: 5.0, 3: 2.0, 4: 3.0})
    assert {1: (5.0, 0.0), 2: (5.0, 0.0), 3: (2.0, 2.0), 4: (3.0, 3.0)} == found
    # profile.db may have values of an instruction (9) that the tree leaves out: they are its line's own.
    tree = entry(1, "main thread", function(2, "f", line(3, "a.cu", 1)))
    found = metrics(tmp_path / "b", tree, {1: 7.0, 2: 7.0, 3: 4.0, 9: 4.0}, metrics=["GINS"])
    assert {1: (7.0, 0.0), 2: (7.0, 3.0), 3: (4.0, 4.0)} == found
    # 0.3 - (0.1 + 0.2) is -5.6e-17 in doubles: exactly 0 is meant.
    tree = entry(1, "main thread", line(2, "a.c", 1), line(3, "a.c", 2))
    assert 0.3 != 0.1 + 0.2
    assert (0.3, 0.0) == metrics(tmp_path / "c", tree, {1: 0.3, 2: 0.1, 3: 0.2})[1]
    # The second of two metrics that differ in their unit alone keeps it in its name.
    found = metrics(
        tmp_path / "d",
        MAIN,
        {(1, "T (sec)"): 5.0, (1, "T (usec)"): 5.0},
        metrics=["T (sec)", "T (usec)"],
    )
    assert {(1, "T"): (5.0, 5.0), (1, "T (usec)"): (5.0, 5.0)} == found
    assert list(range(5001)) == read(tmp_path, made.chain(5000)).table("CALLTREE")["depth"].tolist()


def test_units_sums_and_stalls(tmp_path: Path) -> None:
    for text, name, unit, stored, value in [
        *(
            (f"T ({unit})", "T", "s", stored, 2.0)
            for unit, stored in (("sec", 2.0), ("msec", 2e3), ("nsec", 2e9))
        ),
        *(
            ("CPUTIME (usec)", "CPUTIME", "s", 2e6, 2.0),
            ("REALTIME (S)", "REALTIME", "s", 2.0, 2.0),
        ),
        *((f"GXCOPY:H2D ({unit})", "GXCOPY:H2D", "bytes", 8.0, 8.0) for unit in "Bb"),
        ("GPAGE:UMPCNT (bytes)", "GPAGE:UMPCNT", "bytes", 8.0, 8.0),
        ("GSAMP:PER (cyc)", "GSAMP:PER", "cycles", 8.0, 8.0),
        # The unit comes from the parentheses, in any case, else from the metric.
        *(
            (metric, metric, unit, 8.0, 8.0)
            for metric, unit in (("GSAMP:TOT", "samples"), ("GKER:COUNT", "count"))
        ),
        *(
            (m, m, u, 8.0, 8.0)
            for m, u in (("GINS:STL_GMEM", "instructions"), ("GCYCLES:STL", "cycles"))
        ),
        ("ENERGY (J)", "ENERGY (J)", "count", 8.0, 8.0),
    ]:
        profile = read(tmp_path, MAIN, metrics=[text], threads=[Thread(values={(1, text): stored})])
        expected = [(name, unit, pytest.approx(value, rel=1e-15))]
        for table in ("CALL_METRICS", "THREAD_METRICS"):
            assert expected == rows(profile.table(table), "metric", "unit", "inclusive")
    # Of two threads of 3 s each only the plain sum is taken; values are stored under the first of the ways.
    for ways, found in [
        ([(0, "$$"), (1, "$$"), (0, "($$^2)")], [("CPUTIME", 6.0)]),
        *(([(1, "$$"), (0, "$$")], []), ([(0, "($$^2)"), (0, "$$")], []), ([(1, "$$")], [])),
    ]:
        told = [Thread(values={(1, "CPUTIME (sec)"): 3.0})] * 2
        profile = read(tmp_path, MAIN, threads=told, combine=ways)
        assert found == rows(profile.table("CALL_METRICS"), "metric", "exclusive")
    # Of 10 waits for memory the line's own are 4 and the inlined line's 6; sums over reasons are no reason.
    for spelling in ["GINS:STL_{}", "GCYCLES:STL:{}"]:
        names = [spelling.format(reason) for reason in ("GMEM", "IDEP", "ANY", "NONE")]
        names += ["GCYCLES:STL", "GCYCLES:ISU:VEC"]
        values = {(1, n): 5.0 for n in names[1:]} | {
            (1, names[0]): 10.0,
            (2, names[0]): 10.0,
            (3, names[0]): 6.0,
        }
        tree = entry(1, "main thread", line(2, "a.cu", 1, line(3, "b.cu", 2)))
        table = read(tmp_path, tree, metrics=names, threads=[Thread(values=values)]).table("STALLS")
        expected = [(-1, 1, "idep", 5.0), (-1, 2, "gmem", 4.0), (-1, 3, "gmem", 6.0)]
        assert expected == rows(table, "launch", "node", "reason", "value")


def test_metrics_of_threads(tmp_path: Path) -> None:
    def threads(name: str, *identities: tuple[tuple[str, int], ...]) -> pd.DataFrame:
        told = [Thread(identity, TIME) for identity in identities]
        return read(tmp_path / name, MAIN, threads=told).table("THREADS")

    one = (("NODE", 5), ("RANK", 1), ("THREAD", 0))
    stream = (("NODE", 5), ("RANK", 1), ("GPUCONTEXT", 1), ("GPUSTREAM", 7))
    device = (("NODE", 5), ("GPUDEVICE", 2), ("GPUCONTEXT", 1))
    assert [
        (1, "cpu", "rank 1 thread 0", 1),
        (2, "gpu", "rank 1 GPU context 1 stream 7", 1),
        (3, "gpu", "GPU 2 context 1", None),
        (4, "cpu", "unnamed", None),
    ] == rows(threads("a", one, stream, device, ()), "thread", "kind", "name", "mpi_rank")
    nodes = threads(
        "b", (("NODE", 5), ("THREAD", 0)), (("NODE", 6), ("THREAD", 0))
    )  # only if there are several
    assert ["node 5 thread 0", "node 6 thread 0"] == nodes["name"].tolist()
    # Every thread's value below every entry point; the stream has none. Metrics have other numbers than in sums.
    table = hpctoolkit.read(made.sample(tmp_path / "a")).table("THREAD_METRICS")
    time = table[table["metric"] == "CPUTIME"]
    expected = [(1, "main thread", "s", 3.0), (2, "application thread", "s", 1.0)]
    assert expected == rows(time, "thread", "entry", "unit", "inclusive")
    sums = {"GINS:STL_ANY": 12.0, "GINS:STL_GMEM": 12.0, "GXCOPY:H2D": 8e6}
    assert sums == {
        metric: table.loc[table["metric"] == metric, "inclusive"].sum() for metric in sums
    }
    # A thread without a sample is in THREADS and has no metric.
    profile = read(
        tmp_path / "b", MAIN, threads=[Thread((("THREAD", 0),), TIME), Thread((("THREAD", 1),))]
    )
    assert [1, 2] == profile.table("THREADS")["thread"].tolist()
    assert [1] == profile.table("THREAD_METRICS")["thread"].tolist()


STRETCH = ("thread", "start_ns", "dur_ns", "node", "ended")


def test_a_stretch_lasts_until_the_next_of_its_thread(tmp_path: Path) -> None:
    def trace(name: str, *elements: tuple[int, int]) -> Profile:
        return read(tmp_path / name, MAIN, threads=[Thread(values=TIME, trace=elements)])

    # In 1 from 0 to 10 and from 10 to 30 (then idle until 35), and again from 35 on: that has no end.
    profile = trace("a", (0, 1), (10, 1), (30, 0), (35, 1))
    expected = [(1, 0, 10, 1, False), (1, 10, 20, 1, True), (1, 35, 0, 1, False)]
    assert expected == rows(profile.table("TRACE"), *STRETCH)
    assert (T0, 35) == tuple(profile.capture[["t0_unix_ns", "dur_ns"]].iloc[0])
    # trace.db without a context has no rows and no clock, and what to record is said.
    profile = trace("b", (0, 0))
    assert "TRACE" not in profile.loaders
    assert "TRACE" in [m.table for m in profile.missing]
    assert profile.capture["t0_unix_ns"].isna().all()
    # Thread 1 is seen from 0, thread 2 from 500, the stream from 1500 ns; the end of one is not that of the next.
    assert [
        *((1, 0, 1000, 3, False), (1, 1000, 2000, 4, True), (1, 4000, 0, 4, False)),
        *((2, 500, 2000, 11, True), (3, 1500, 1000, 5, True)),
    ] == rows(hpctoolkit.read(made.sample(tmp_path / "a")).table("TRACE"), *STRETCH)
    # Thread 1 is last seen in 1; that thread 2, stored next, starts idle says nothing about it.
    told = [
        Thread((("THREAD", 0),), TIME, ((0, 1),)),
        Thread((("THREAD", 1),), {}, ((0, 0), (5, 1), (9, 0))),
    ]
    table = read(tmp_path / "b", MAIN, threads=told).table("TRACE")
    assert [(1, 0, 0, 1, False), (2, 5, 4, 1, True)] == rows(table, *STRETCH)


def test_what_a_database_lacks(tmp_path: Path) -> None:
    lacking = {"STALLS": "hpcrun -e gpu=nvidia,pc", "TRACE": "hpcrun -t"}
    profile = read(tmp_path / "a", MAIN, threads=[Thread((("THREAD", 0),), TIME)])
    expected = {"CALL_METRICS.GPUOP": "hpcrun -e gpu=nvidia,pc", **lacking}
    assert expected == {m.table: m.record for m in profile.missing}
    assert () == profile.notes
    # A metric that is listed and has no value was not recorded: no CPU time; kernels without samples, no stalls.
    names = ["GKER (sec)", "CPUTIME (sec)", "GINS:STL_GMEM"]
    path = made.database(tmp_path / "b", [MAIN], names, [Thread(values={(1, "GKER (sec)"): 1.0})])
    missing = {m.table: m.record for m in hpctoolkit.read(path).missing}
    assert {"CALL_METRICS.CPUTIME": "hpcrun -e CPUTIME", **lacking} == missing
    # A run with CALL_METRICS still says that these have no CPU time.
    assert "How much CPU time did each call path take?" in [
        m.what for m in perfkit.load(path).missing
    ]


def test_what_does_not_add_up_or_was_lost_is_said(tmp_path: Path) -> None:
    key, whole = (1, "CPUTIME (sec)"), (0, "CPUTIME (sec)")
    profile = read(tmp_path / "a", MAIN, summary={key: 3.0, whole: 4.0})
    assert [3.0] == profile.table("CALL_METRICS")["inclusive"].tolist()
    (note,) = profile.notes
    assert note.startswith("CPUTIME: the entry points have 3 s together, the whole program 4: ")
    assert (
        () == read(tmp_path / "b", MAIN, summary={key: 3.0, whole: 3.0 + 3e-12}).notes
    )  # a difference of rounding

    def notes(name: str, **values: float) -> tuple[str, ...]:
        told = {(1, f"GSAMP:{metric}"): value for metric, value in values.items()}
        return read(
            tmp_path / name, MAIN, metrics=[m for _, m in told], threads=[Thread(values=told)]
        ).notes

    taken = "75.0 % of the expected samples of GPU instructions were taken (3 of 4)"
    dropped = "samples of GPU instructions that were dropped: 1"
    assert (taken, dropped) == notes("a", TOT=3.0, EXP=4.0, DRP=1.0)
    assert () == notes("b", TOT=4.0, EXP=4.0)
    profile = read(
        tmp_path / "c", MAIN, threads=[Thread(values=TIME)], description="SIMULATED by a test"
    )
    assert ("simulated, not measured: by a test",) == profile.notes


def test_meta_db_stands_for_its_database(tmp_path: Path) -> None:
    path = made.sample(tmp_path) / "meta.db"
    (tmp_path / "hpctoolkit.db").touch()  # HPCToolkit leaves this empty file beside the others
    assert hpctoolkit.sniff(tmp_path)
    assert hpctoolkit.sniff(path)
    assert hpctoolkit.read(tmp_path).table("CALL_METRICS").equals(perfkit.load(path).call_metrics)


def measured(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "app-000000-000-7f0100-42-0.hpcrun").write_bytes(b"HPCRUN-profile____")
    return folder


def test_databases_beside_others_and_measurements(tmp_path: Path) -> None:
    nsys.sqlite(tmp_path / "run.sqlite", nsys.capture())
    made.sample(tmp_path / "hpctoolkit-app-database")
    measured(tmp_path / "hpctoolkit-app-measurements")
    run = perfkit.load(tmp_path)
    assert {"nsys"} == {p.reader for p in run.profiles}
    assert any("hpctoolkit-app-database" in note and "kernel" in note for note in run.notes), (
        run.notes
    )
    assert len(run.kernels) > 0
    assert any(
        "left out what is no profile (hpctoolkit-app-measurements)" in note for note in run.notes
    )
    folder = measured(tmp_path / "alone" / "hpctoolkit-app-measurements")
    assert not hpctoolkit.sniff(folder)
    for given in (folder, folder.parent):
        with pytest.raises(
            ReadError, match=r"-measurements: these are HPCToolkit's measurements.*`hpcprof -o DATA"
        ):
            perfkit.load(given)


FILES = ["cct.db", "meta.db", "profile.db", "trace.db"]
AGAIN = "Copy the database again, or make it anew with `hpcprof`."


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_empty_cut_or_of_another_kind_or_version(name: str, tmp_path: Path) -> None:
    path = made.sample(tmp_path) / name
    whole, other = path.read_bytes(), (tmp_path / FILES[FILES.index(name) - 1]).read_bytes()
    path.write_bytes(b"")  # copying over a slow link, or a limit on file sizes, leaves such files
    assert f"{path}: the file is empty (0 bytes). {AGAIN}" == error(tmp_path)
    path.write_bytes(whole[:-4])
    assert (
        f"{path}: the file ends with {whole[-12:-4]!r}, not {whole[-8:]!r}: it is cut. {AGAIN}"
        == error(tmp_path)
    )
    # A file that lost a part in its middle still has its footer: its sections tell.
    path.write_bytes(whole)
    change(path, "Q", 16, 1 << 40)
    assert (
        f"a section ends at byte {number(path, 24) + (1 << 40)}, the file has {len(whole)}: "
        in error(tmp_path)
    )
    path.write_bytes(other)
    assert error(tmp_path).startswith(
        f"{path}: the file starts with {other[:14]!r}, not b'HPCTOOLKIT"
    )
    # Where fields are changes with the major version.
    for major in (3, 5):
        path.write_bytes(whole)
        change(path, "B", 14, major)
        assert f"{path}: the format is {major}.0, perfkit reads 4.x. " in error(tmp_path)
    if name in ("meta.db", "profile.db"):  # without the tree or its values there is no database
        path.unlink()
        assert f"{path}: the database lacks this file. {AGAIN}" == error(tmp_path)


def test_one_file_of_a_database_is_not_the_database(tmp_path: Path) -> None:
    path = made.sample(tmp_path) / "profile.db"
    assert not hpctoolkit.sniff(path)
    assert (
        f"{path}: this is one of the files of an HPCToolkit database. Load its folder, {tmp_path}."
        == error(path)
    )
    (tmp_path / "trace.db").unlink()
    (tmp_path / "trace.db").mkdir()  # it cannot be opened
    assert error(tmp_path).startswith(f"{tmp_path / 'trace.db'}: the file ")


def everything(path: Path) -> None:
    run = perfkit.load(path)
    for name in run.profiles[0].loaders:
        run.table(name)


def error(path: Path) -> str:
    """What reading everything says; one line with what to do."""
    with pytest.raises(ReadError) as caught:
        everything(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def number(path: Path, at: int) -> int:
    return int(struct.unpack_from("<Q", path.read_bytes(), at)[0])


def change(path: Path, form: str, at: int, value: float) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(f"<{form}", data, at, value)
    path.write_bytes(bytes(data))


CONTEXTS, PROFILES, TRACES = (
    24 + 16 * 3,
    24,
    24,
)  # where the place of the section stands in the head of its file


def test_what_leads_nowhere_is_damage(tmp_path: Path) -> None:
    meta, values, traces = (tmp_path / name for name in ("meta.db", "profile.db", "trace.db"))

    def check(path: Path, form: str, at: int, value: float, words: str) -> None:
        change(path, form, at, value)
        assert f"{path.name}: " in (said := error(tmp_path))
        assert words in said
        made.sample(tmp_path)

    made.sample(tmp_path)
    root = number(meta, number(meta, CONTEXTS))
    child, unfit = number(meta, root + 8), "do not fit into their section, or are there twice"
    change(meta, "Q", child, number(meta, root))
    check(meta, "Q", child + 8, child, unfit)  # the function is its own child
    check(
        meta, "Q", child + 8, len(meta.read_bytes()) + 8, unfit
    )  # they lie behind the end of the file
    check(
        meta, "I", child + 16, 0, "the context 0 is there more than once"
    )  # which stands for the whole program
    check(
        meta, "Q", child + 32, number(meta, child + 32) + 8, "points at none of the"
    )  # between two functions
    check(meta, "Q", root + 24, 1 << 40, "a text would start at byte 1099511627776 and has no end")
    check(
        meta, "Q", root, number(meta, root) - 8, "does not end with its array"
    )  # the last child is cut
    check(meta, "B", child + 20, 7, "a context is shorter than its flags say")
    first = number(values, number(values, PROFILES))
    check(values, "I", first + 40, 0, "the first of 4 profiles is not the sum over all threads. ")
    check(
        values, "I", number(values, first + 24), 9, "the contexts of profile 0 are not in order. "
    )
    check(
        values,
        "Q",
        first + 8,
        len(values.read_bytes()),
        "the values of profile 0 would end at byte ",
    )
    check(
        values,
        "d",
        number(values, first + 8) + 2,
        float("nan"),
        "the values of profile 0 are not all numbers. ",
    )
    trace = number(traces, number(traces, TRACES))
    check(traces, "I", trace, 99, "a trace is of profile 99, the database has 4. ")
    check(traces, "Q", trace + 8, 1 << 40, "a trace would be from byte ")
    check(traces, "Q", number(traces, trace + 8), T0 + 2000, "not in order of time")
    check(traces, "Q", number(traces, trace + 8), T0 - 1, "before the first or after the last")


def test_traces_without_elements_have_no_times(tmp_path: Path) -> None:
    """hpcprof then writes 2^63 - 1 as the first time and 2^63 as the last."""
    folder = made.database(tmp_path / "a", [MAIN], threads=[Thread(values=TIME)])
    made.traces(folder / "trace.db", [[]], 0, 0)
    profile = hpctoolkit.read(folder)
    assert "TRACE" not in profile.loaders
    assert profile.capture["t0_unix_ns"].isna().all()
