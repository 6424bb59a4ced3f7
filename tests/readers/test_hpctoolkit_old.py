"""HPCToolkit databases of the older form, against Hatchet where it is right, and by hand where it is not."""

import re
import struct
from pathlib import Path

import hatchet
import pandas as pd
import pytest
from frames import known as listed
from readers.experiment_files import call, database, function, inlined, loop, sample, statement
from real import truth_of

from perfkit.errors import ReadError
from perfkit.readers.hpctoolkit import old

CPI = "hpctoolkit-cpi-database"
US = 1e-6


def calltree(folder: Path) -> pd.DataFrame:
    return old.read(folder).table("CALLTREE").set_index("node")


def edited(folder: Path, before: str, after: str) -> Path:
    xml = folder / "experiment.xml"
    text = xml.read_text(encoding="utf-8")
    assert before in text
    xml.write_text(text.replace(before, after, 1), encoding="utf-8")
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(ReadError) as caught:
        old.read(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


DTD = b'<?xml version="1.0"?>\n<!DOCTYPE hpc-experiment [\n<!ELEMENT HPCToolkitExperiment (Header)>\n]>'


def test_the_folder_and_its_description_are_claimed(tmp_path: Path) -> None:
    folder = sample(tmp_path / "db")
    assert old.sniff(folder)
    assert old.sniff(folder / "experiment.xml")
    for file in folder.glob("*.metric-db"):
        assert not old.sniff(file)
        file.unlink()
    assert old.sniff(folder)  # without metric files too: reading says what is missing
    # The name alone says nothing; neither does a folder without the file.
    assert not old.sniff(tmp_path)
    for content in (b"", b'<?xml version="1.0"?><svg/>', b"HPCToolkitExperiment", bytes(99)):
        (tmp_path / "experiment.xml").write_bytes(content)
        assert not old.sniff(tmp_path)
    # What HPCToolkit wrote until 2017 begins with a DTD of another name.
    (tmp_path / "experiment.xml").write_bytes(DTD)
    assert old.sniff(tmp_path)


def test_contexts_are_those_of_hatchet(tmp_path: Path) -> None:
    folder = sample(tmp_path / "db")
    tree = calltree(folder)
    # A call site and the function called there are one context: 3 and 7 are not there, 4 and 8 are below 2 and 4.
    parents = {2: None, 4: 2, 5: 4, 6: 5, 8: 4, 9: 8, 10: 4, 11: None, 12: 11}
    assert list(parents.items()) == listed(tree.reset_index(), "node", "parent")
    assert [0, 1, 2, 3, 2, 3, 2, 0, 1] == tree["depth"].tolist()
    assert ["<program root>"] * 7 + ["<thread root>"] * 2 == tree["entry"].tolist()
    # Names of functions are whole, without the line of the call that Hatchet puts before them ("20:work(int)").
    assert [
        ("entry", "<program root>", None, None, "app"),
        ("function", "main", "main.c", 1, "app"),
        ("loop", "loop at main.c:10", "main.c", 10, None),
        ("line", "main.c:11", "main.c", 11, None),
        ("function", "work(int)", "lib/work.c", 1, "app"),
        ("line", "work.c:5", "lib/work.c", 5, None),
        ("line", "main.c:21", "main.c", 21, None),
        ("entry", "<thread root>", None, None, "app"),
        ("line", "~unknown-file~", None, None, None),
    ] == listed(tree, "kind", "name", "file", "line", "module")
    # Line 21 of main follows the call into work.c: Hatchet gives it the file it met last.
    theirs = hatchet.GraphFrame.from_hpctoolkit(str(folder)).dataframe.set_index("nid")["name"]
    assert "work.c:21" == theirs.loc[10].iloc[0]
    names = [
        "operator<<(a&, b*)",
        '"quoted" & <b>bold</b>',
        "größe::测试()",
        "0x12:34",
        "{lambda()#1}; rm -rf",
    ]
    folder = database(tmp_path / "a", *(function(2 + i, name) for i, name in enumerate(names)))
    assert names == calltree(folder)["name"].tolist()
    # Hatchet leaves an inlined function without a name out; its line keeps its file.
    within = (inlined(3, "", statement(4, 7, 1.0), file="in.h"), inlined(5, "f", file="in.h"))
    tree = calltree(database(tmp_path / "b", function(2, "main", *within))).reset_index()
    assert [(2, "main", None), (4, "in.h:7", 2), (5, "f", 2)] == listed(
        tree, "node", "name", "parent"
    )


def test_values_add_up_over_ranks_and_threads(tmp_path: Path) -> None:
    # Four threads with 1 to 4 times 3, 4, 2 and 1 us: 30, 40, 20 and 10 us; above them sums.
    metrics = old.read(sample(tmp_path / "db")).table("CALL_METRICS").set_index("node")
    assert {("CPUTIME", "s")} == set(listed(metrics, "metric", "unit"))
    inclusive = {2: 90, 4: 90, 5: 30, 6: 30, 8: 40, 9: 40, 10: 20, 11: 10, 12: 10}
    assert {node: pytest.approx(us * US, rel=1e-12) for node, us in inclusive.items()} == metrics[
        "inclusive"
    ].to_dict()
    exclusive = metrics.loc[metrics["exclusive"] != 0, "exclusive"]
    assert {6: 30, 9: 40, 10: 20, 12: 10} == (exclusive / US).round(9).to_dict()
    # hpcprof's exclusive value of main has the loop's 3 us too: Hatchet's sum is 13 us for 10.
    work = call(7, 20, function(8, "work", statement(9, 5, 4.0)))
    main = function(2, "main", loop(5, 10, statement(6, 11, 3.0)), work, statement(10, 21, 3.0))
    folder = database(tmp_path / "loop", main)
    assert 13.0 == hatchet.GraphFrame.from_hpctoolkit(str(folder)).dataframe["time"].sum()
    assert 10 * US == pytest.approx(
        old.read(folder).table("CALL_METRICS")["exclusive"].sum(), rel=1e-12
    )
    # Hatchet calls us and s both `time`, the second over the first; of 7 us, 14 s and 21 cycles each has its own.
    names = ("CPUTIME (usec)", "CPUTIME (sec)", "PAPI_TOT_CYC")
    folder = database(
        tmp_path / "units",
        function(2, "main", statement(3, 1, 7.0), statement(4, 2)),
        metrics=names,
    )
    metrics = old.read(folder).table("CALL_METRICS")
    expected = [
        ("CPUTIME", "s", pytest.approx(7e-6)),
        ("CPUTIME (sec)", "s", 14.0),
        ("PAPI_TOT_CYC", "count", 21.0),
    ]
    assert expected == listed(metrics.query("node == 2"), "metric", "unit", "inclusive")
    assert {2, 3} == set(
        metrics["node"]
    )  # what was never sampled is in the tree alone; without any there is no table
    silent = old.read(database(tmp_path / "silent", function(2, "main", statement(3, 1))))
    assert {"CALLTREE", "THREADS"} == set(silent.loaders)
    assert "hpcrun -e CPUTIME" in {m.record for m in silent.missing}


def test_threads_are_numbered_by_rank_and_have_their_share(tmp_path: Path) -> None:
    profile = old.read(sample(tmp_path / "db"))
    names = [
        (2 * rank + thread, "cpu", f"rank {rank} thread {thread}", rank)
        for rank in (0, 1)
        for thread in (0, 1)
    ]
    assert names == listed(profile.table("THREADS"), "thread", "kind", "name", "mpi_rank")
    # Thread n has n + 1 times 9 us below the program's root and 1 us below the thread's.
    expected = [
        (thread, entry, "CPUTIME", "s", pytest.approx((thread + 1) * us * US, rel=1e-12))
        for thread in range(4)
        for entry, us in (("<program root>", 9), ("<thread root>", 1))
    ]
    assert expected == listed(
        profile.table("THREAD_METRICS"), "thread", "entry", "metric", "unit", "inclusive"
    )
    # A rank is MPI's only if there are several; GPU streams are numbered from 500 on, and have their own values.
    files = ((0, 0), (0, 1), (0, 500), (0, 501))
    alone = old.read(
        database(tmp_path / "alone", function(2, "main", statement(3, 1, 5.0)), threads=files)
    )
    names = [
        (kind, f"{name} {n}", None)
        for kind, name in (("cpu", "thread"), ("gpu", "GPU stream"))
        for n in (0, 1)
    ]
    assert names == listed(alone.table("THREADS"), "kind", "name", "mpi_rank")
    assert [5.0, 10.0, 15.0, 20.0] == pytest.approx(
        (alone.table("THREAD_METRICS")["inclusive"] / US).tolist()
    )


def test_what_does_not_add_up_is_noted(tmp_path: Path) -> None:
    # The first row of a metric file is the whole program: 4 us there, 3 us below the entry points.
    main = function(2, "main", statement(3, 1, 3.0))
    folder = database(tmp_path / "a", main)
    assert () == old.read(folder).notes
    file = next(folder.glob("*.metric-db"))
    content = file.read_bytes()
    file.write_bytes(content[:32] + struct.pack(">d", 4.0) + content[40:])
    (note,) = old.read(folder).notes
    assert note.startswith(
        "CPUTIME: the entry points have 3e-06 s together, the whole program 4e-06"
    )


def test_metric_files_that_lack_or_are_damaged_are_refused(tmp_path: Path) -> None:
    folder = database(
        tmp_path / "none", function(2, "main"), threads=()
    )  # hpcprof writes them on demand only
    assert f"{folder}: there is no *.metric-db file beside experiment.xml." in refused(folder)
    assert "hpcprof --metric-db=yes" in refused(folder / "experiment.xml")
    # Rank and thread are told by the names alone.
    folder = database(tmp_path / "two", function(2, "main"))
    file = next(folder.glob("*.metric-db"))
    (folder / "other-000000-000-1-2-0.metric-db").write_bytes(file.read_bytes())
    assert "another file is of the same rank and thread" in refused(folder)
    for change, said in [
        (lambda b: b[:-8], "the file has {} bytes, its header says {}"),
        (lambda b: b"", "the file has 0 bytes, which is less than its header"),
        (lambda b: b"X" + b[1:], "the file starts with b'XPCPROF"),
        (
            lambda b: b[:28] + struct.pack(">i", 4) + b[32:],
            "the file has 4 metrics, experiment.xml 2",
        ),
        (lambda b: b[:24] + struct.pack(">i", -2) + b[28:], "the file has -2 contexts, not the"),
    ]:
        folder = sample(tmp_path / "db")
        file = sorted(folder.glob("*.metric-db"))[1]
        whole = file.read_bytes()
        file.write_bytes(change(whole))
        message = refused(folder)
        assert message.startswith(f"{file}: ")
        assert said.format(len(change(whole)), len(whole)) in message


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    for before, after in [
        *(
            ("<SecCallPathProfileData>", "<Other>"),
            ("<LoadModuleTable>", "<Modules>"),
            ("<S ", "<Unheard "),
        ),
        *(
            ('<PF i="2"', '<PF i="two"'),
            ('<PF i="2"', "<PF"),
            ('l="11"', 'l="11-12"'),
            ('t="inclusive"', 'i="x"'),
        ),
        *(('<S i="6"', f'<S i="{number}"') for number in (5, -6, 1000000000)),
    ]:
        folder = edited(sample(tmp_path / "db"), before, after)
        assert str(folder) in refused(folder)
    for i, declared in enumerate(
        ('a "x"', '% a "x"', 'a SYSTEM "file:///etc/hostname"')
    ):  # nothing is fetched
        doctype = f"<!DOCTYPE HPCToolkitExperiment [<!ENTITY {declared}>]>"
        folder = database(tmp_path / f"{i}", function(2, "main"), doctype=doctype)
        assert f"{folder / 'experiment.xml'}: the file declares an XML entity ('a')" in refused(
            folder
        )


def test_ranks_may_have_different_numbers_of_threads(tmp_path: Path) -> None:
    threads = ((0, 0), (0, 1), (1, 0))
    folder = database(tmp_path / "db", function(2, "main", statement(3, 1, 5.0)), threads=threads)
    profile = old.read(folder)
    assert [0, 0, 1] == profile.table("THREADS")["mpi_rank"].tolist()
    # The n-th thread has n times 5 us.
    expected = pytest.approx([5 * US, 10 * US, 15 * US], rel=1e-12)
    assert expected == profile.table("THREAD_METRICS")["inclusive"].tolist()


def test_the_folder_of_a_database_may_have_any_name(tmp_path: Path) -> None:
    assert 4 == len(old.read(sample(tmp_path / "run[1]*?")).table("THREADS"))


def test_call_paths_of_5000_levels_are_read(tmp_path: Path) -> None:
    folder = database(tmp_path / "deep", *(function(2 + i, "f") for i in range(5000)))
    xml = folder / "experiment.xml"
    flat = re.findall(r"<PF [^>]*/>", text := xml.read_text(encoding="utf-8"))
    nested = "".join(element.replace("/>", ">") for element in flat) + "</PF>" * len(flat)
    xml.write_text(text.replace("".join(flat), nested), encoding="utf-8")
    assert [*range(5000)] == old.read(folder).table("CALLTREE")["depth"].tolist()


def test_an_element_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = edited(sample(tmp_path / "db"), '<S i="6" l="11" />', '<X i="6" l="11" />')
    assert "an element 'X' in the call tree" in refused(folder)


def test_a_description_without_metrics_is_refused(tmp_path: Path) -> None:
    folder = database(tmp_path / "db", function(2, "main"), metrics=())
    assert "experiment.xml: the file lists no metric" in refused(folder)


def test_the_real_database_equals_the_reference(profiles: Path) -> None:
    """34 contexts of 59 elements, four ranks; the root inclusive and all contexts exclusive have 3.998242 s."""
    truth = truth_of(profiles, "hpctoolkit", CPI)
    profile = old.read(profiles / "hpctoolkit" / CPI)
    tree, metrics = profile.table("CALLTREE"), profile.table("CALL_METRICS")
    assert truth["hatchet"]["rows"] == 4 * len(tree)
    assert ["<program root>"] == tree.loc[tree["parent"].isna(), "name"].tolist()
    total = truth["total_inclusive_at_roots"] * US
    assert total == pytest.approx(metrics.loc[metrics["node"] == 2, "inclusive"].item(), rel=1e-12)
    assert truth["hatchet"]["exc_time_sum_all_rows"] * US == pytest.approx(
        metrics["exclusive"].sum(), rel=1e-12
    )
    threads = profile.table("THREADS").merge(profile.table("THREAD_METRICS"), on="thread")
    expected = {name: t["root_values"]["2"][0] * US for name, t in truth["per_rank_thread"].items()}
    assert expected == pytest.approx(threads.set_index("name")["inclusive"].to_dict(), rel=1e-12)
    assert () == profile.notes
    # Hatchet says interp.c of context 60, a line of a function of libpsm: the file it met last, in context 58.
    assert [("<unknown file>", None, 41)] == listed(
        tree[tree["node"] == 60], "name", "file", "parent"
    )
