"""Real HPCToolkit databases of 2023 to 2026 against totals computed from their own bytes.

``golden/hpctoolkit/*.truth.json`` was made independently of this reader; metrics are called there as in the file.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from real import truth_of

from perfkit.profile import Profile
from perfkit.readers import hpctoolkit

NAMES = ("ping-pong", "dlrm-cpu", "dlrm-gpu", "leo-nvidia")
PING_PONG, CPU, GPU, LEO = (f"hpctoolkit-{name}-database" for name in NAMES)
ELEMENTS = {  # of trace.db, idle ones and all, and its length, by HPCToolkit's FORMATS.md read with struct
    PING_PONG: (2, 46, 311_978_000),
    CPU: (14_319, 74_657, 110_371_333_000),
    GPU: (8_931, 17_646, 80_648_000_620),
}
FULL = {
    "s": ("sec", "s"),
    "bytes": ("B", "b"),
    "cycles": ("cyc",),
}  # HPCToolkit's units in parentheses

every_database = pytest.mark.parametrize("name", [PING_PONG, CPU, GPU, LEO])


read = cache(hpctoolkit.read)


@pytest.fixture
def database(name: str, profiles: Path) -> Profile:
    return read(profiles / "hpctoolkit" / name)


@pytest.fixture
def truth(name: str, profiles: Path) -> dict[str, Any]:
    return truth_of(profiles, "hpctoolkit", name)


def plain(values: dict[str, Any]) -> dict[str, Any]:
    return {metric.partition(" (")[0]: value for metric, value in values.items()}


def close(values: Any) -> Any:
    """Equal but for the order in which doubles are added."""
    return pytest.approx(values, rel=1e-12)


def by_metric(frame: pd.DataFrame, column: str) -> dict[str, float]:
    sums: dict[str, float] = frame.groupby("metric", observed=True)[column].sum().to_dict()
    return sums


@every_database
def test_contexts_are_all_there_and_hang_in_the_tree(
    database: Profile, truth: dict[str, Any]
) -> None:
    tree = database.table("CALLTREE")
    kinds = tree["kind"].astype(str).replace("gpu_operation", "function").value_counts().to_dict()
    assert truth["n_contexts"] == len(tree)
    assert truth["context_types"] == kinds  # GPU operations are functions to HPCToolkit
    roots = tree.loc[tree["parent"].isna(), ["node", "name"]]
    assert {(e["ctx"], e["name"]) for e in truth["entries"]} == set(
        roots.itertuples(index=False, name=None)
    )
    # Parents exist, are one level up and belong to the same entry point.
    tree = tree.set_index("node")
    below = tree[tree["parent"].notna()]
    above = tree.loc[below["parent"].astype("int64")]
    assert (above["depth"].to_numpy() + 1 == below["depth"].to_numpy()).all()
    assert (above["entry"].to_numpy() == below["entry"].to_numpy()).all()
    assert tree.index.is_unique


@every_database
def test_values_add_up_to_the_whole(database: Profile, truth: dict[str, Any]) -> None:
    values = database.table("CALL_METRICS").merge(
        database.table("CALLTREE")[["node", "entry", "kind"]], on="node"
    )
    # Inclusive values of the roots, by entry point and all together, are those of the file's context 0.
    roots = values[values["kind"] == "entry"]
    found = dict(
        zip(zip(roots["metric"], roots["entry"], strict=True), roots["inclusive"], strict=True)
    )
    expected = plain(truth["by_entry"]).items()
    assert (
        close({(metric, entry): v for metric, values in expected for entry, v in values.items()})
        == found
    )
    assert close(plain(truth["context0_total"])) == by_metric(roots, "inclusive")
    # Exclusive ones of all contexts are the total, although HPCToolkit's own `point` values are not.
    assert close(plain(truth["total"])) == by_metric(values, "exclusive")
    assert (values["exclusive"] >= 0).all()
    # So is what single threads have at the entry points, though it is stored apart from it.
    assert close(plain(truth["total"])) == by_metric(database.table("THREAD_METRICS"), "inclusive")


@every_database
def test_threads_streams_and_units(database: Profile, truth: dict[str, Any]) -> None:
    kinds = {
        kind: int(n) for kind, n in database.table("THREADS")["kind"].value_counts().items() if n
    }
    expected: dict[str, int] = {}
    for identity, count in truth["profiles"].items():
        if identity != "summary":
            kind = "gpu" if "GPU" in identity else "cpu"
            expected[kind] = expected.get(kind, 0) + count
    assert expected == kinds
    units = (
        database.table("CALL_METRICS")
        .drop_duplicates("metric")
        .set_index("metric")["unit"]
        .to_dict()
    )
    for metric in truth["total"]:
        name, _, unit = metric.rstrip(")").partition(" (")
        assert not unit or unit in FULL[units[name]]


@pytest.mark.parametrize("name", [GPU, LEO])
def test_stall_shares(database: Profile, truth: dict[str, Any]) -> None:
    """43.8 % of the waits of the DLRM kernels are for global memory; all together are STL_ANY or GCYCLES:STL."""
    waits = database.table("STALLS").groupby("reason", observed=True)["value"].sum()
    derived = truth["derived_all_threads"]
    assert close(derived["stall_any_metric"]) == waits.sum()
    assert close(derived["stall_shares"]) == {
        str(r).upper(): share for r, share in (waits / waits.sum()).items()
    }


@pytest.mark.parametrize("name", ELEMENTS)
def test_traces(name: str, database: Profile) -> None:
    # The ping-pong lasts from 616.448149 to 616.760127 s in the file: 0.311978 s, not 0.311979 s as noted elsewhere.
    idle, elements, length = ELEMENTS[name]
    trace = database.table("TRACE")
    assert elements - idle == len(trace)
    assert length == database.capture["dur_ns"].iloc[0]
    assert length >= (trace["start_ns"] + trace["dur_ns"]).max()
    assert trace["node"].isin(database.table("CALLTREE")["node"]).all()
    assert trace["thread"].isin(database.table("THREADS")["thread"]).all()


def test_streams_ranks_and_python_frames(profiles: Path) -> None:
    database = read(profiles / "hpctoolkit" / GPU)
    stream = database.table("THREADS").query("kind == 'gpu'")
    assert ["GPU context 1 stream 7"] == stream["name"].tolist()
    assert stream["thread"].tolist() == database.table("TRACE")["thread"].unique().tolist()
    assert not database.table("THREAD_METRICS")["thread"].isin(stream["thread"]).any()
    threads = read(profiles / "hpctoolkit" / PING_PONG).table("THREADS")
    assert [["rank 1 thread 0", 1], ["rank 0 thread 0", 0]] == threads[
        ["name", "mpi_rank"]
    ].to_numpy().tolist()
    # Python functions are where their source is, not where the database keeps its copy of it.
    tree = database.table("CALLTREE")
    python = tree.loc[(tree["module"] == "<logical python>") & tree["file"].notna(), "file"]
    assert (python.str.startswith("/home/") & python.str.endswith(".py")).all()


@pytest.mark.parametrize("name", [GPU, LEO])
def test_kernels_keep_their_names(database: Profile, truth: dict[str, Any]) -> None:
    """Kernels are the functions below <gpu kernel>: 32 of the DLRM run, where Hatchet merges all of one template."""
    tree = database.table("CALLTREE").set_index("node")
    launched = tree.index[tree["parent"].map(tree["name"]) == "<gpu kernel>"]
    values = database.table("CALL_METRICS")
    values = values[values["node"].isin(launched) & values["metric"].isin(["GKER", "GKER:COUNT"])]
    sums = values.groupby([values["node"].map(tree["name"]).astype(str), "metric"], observed=True)[
        "inclusive"
    ].sum()
    assert truth["kernels"]["distinct"] == len(sums) / 2
    for kernel in truth["kernels"]["top5"]:
        assert close([kernel["time_s"], kernel["launches"]]) == sums.loc[kernel["name"]].tolist()


def test_hatchet_agrees_where_it_reads(profiles: Path) -> None:
    from hatchet.readers.hpctoolkit_reader_latest import HPCToolkitReaderLatest

    path = profiles / "hpctoolkit" / PING_PONG
    frame = HPCToolkitReaderLatest(str(path)).read().dataframe.reset_index()
    theirs = pd.DataFrame(
        {"depth": [n._depth for n in frame["node"]], "time": frame["time (inc)"].to_numpy()}
    )
    theirs.index = pd.Index([n._hatchet_nid for n in frame["node"]], name="node")
    database = read(path)
    ours = database.table("CALLTREE").set_index("node")
    inclusive = database.table("CALL_METRICS").set_index("node")["inclusive"].reindex(ours.index)
    assert ours["depth"].to_dict() == theirs["depth"].to_dict()
    np.testing.assert_array_equal(inclusive, theirs["time"].reindex(ours.index))


@pytest.mark.parametrize(("name", "taken"), [(GPU, "66.7 %"), (LEO, "92.3 %")])
def test_sample_coverage_is_said(taken: str, database: Profile) -> None:
    (note,) = database.notes  # nothing else is to be said, so the metrics add up
    assert note.startswith(f"{taken} of the expected samples")


EMPTY_TRACES = "HPCToolkit__hpcviewer.e4__lmp-openmp-database"


def test_a_real_database_with_empty_traces_has_its_threads(profiles: Path) -> None:
    assert len(read(profiles / "hpctoolkit" / EMPTY_TRACES).table("THREADS")) == 24


def test_a_real_database_with_empty_traces_has_its_contexts(profiles: Path) -> None:
    assert len(read(profiles / "hpctoolkit" / EMPTY_TRACES).table("CALLTREE")) == 1908


def test_a_real_database_with_empty_traces_has_its_time(profiles: Path) -> None:
    database = read(profiles / "hpctoolkit" / EMPTY_TRACES)
    truth = truth_of(profiles, "hpctoolkit", EMPTY_TRACES)["total"]["REALTIME (sec)"]
    tree, metrics = database.table("CALLTREE"), database.table("CALL_METRICS")
    roots = tree.loc[tree["parent"].isna(), "node"]
    total = metrics.loc[metrics["node"].isin(roots), "inclusive"].sum()
    assert truth == pytest.approx(1641.307698, rel=1e-9)
    assert total == pytest.approx(truth, rel=1e-9)


def test_a_real_database_with_empty_traces_asks_for_traces(profiles: Path) -> None:
    assert "TRACE" in [lack.table for lack in read(profiles / "hpctoolkit" / EMPTY_TRACES).missing]
