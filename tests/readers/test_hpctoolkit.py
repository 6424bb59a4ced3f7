"""HPCToolkit databases, one quirk a test (made files)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from readers import hpctoolkit_files as made
from readers.hpctoolkit_files import Context, Thread, entry, function, instruction, line, loop, read, rows

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
        tmp_path,
        Context(2, 9, file="/a.c", line=4),
        Context(3, 9, module="/lib/x.so", offset=1),
        Context(4, 9),
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
