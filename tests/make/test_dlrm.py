"""The simulated training of a DLRM, as HPCToolkit would have recorded it."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from databases import Database

import perfkit

SAMPLE, DATABASE = Path(__file__).parents[2] / "data" / "dlrm_h100", "hpctoolkit-dlrm-database"
TRUTH = json.loads((SAMPLE / "dlrm_h100.truth.json").read_text())
PERIOD_NS = 5_000_000
GPU_PARTS = ("GKER", "GXCOPY", "GMSET", "GMEM", "GSYNC")


@pytest.fixture(scope="module")
def database() -> Database:
    return Database(SAMPLE / DATABASE)


@pytest.fixture(scope="module")
def profile() -> Any:
    (profile,) = perfkit.load(SAMPLE).profiles
    return profile


def names(database: Database) -> dict[str, str]:
    """Metrics: name without unit to name in the file."""
    return {metric.name.split(" (")[0]: metric.name for metric in database.metrics}


def test_totals_are_true(database: Database) -> None:
    assert set(TRUTH["totals"]) == set(names(database))
    for name, stored in names(database).items():
        inclusive = database.inclusive(stored)
        assert TRUTH["totals"][name] == inclusive[0], name
        by_entry = {entry: inclusive[context] for entry, context in database.entries().items()}
        assert {entry: values.get(name, 0) for entry, values in TRUTH["by_entry"].items()} == by_entry, name
    # The sum of the point values of all contexts, hidden ones too, is the total of every metric.
    points: dict[str, float] = defaultdict(float)
    for metric in database.metrics:
        number = metric.statistics["point"]
        for values in database.profiles[0].values.values():
            points[metric.name] += values.get(number, 0)
    found = {name: points[stored] for name, stored in names(database).items()}
    assert pytest.approx(TRUTH["totals"], rel=1e-12) == found


def test_threads_are_true(database: Database) -> None:
    """31 threads, most of them idle, and a stream; CPU time and launches of each are those of its operations."""
    assert 31 + 1 == len(TRUTH["threads"])
    assert 10 == sum(thread.get("cpu_samples", 0) > 0 for thread in TRUTH["threads"])
    for thread in TRUTH["threads"]:
        identity = [(kind, physical) for kind, _, _, physical in database.profiles[thread["thread"]].identity[1:]]
        if thread["kind"] == "gpu":
            assert [("GPUCONTEXT", 1), ("GPUSTREAM", 7)] == identity
            assert not database.profiles[thread["thread"]].values
            continue
        assert [("THREAD", int(thread["name"].removeprefix("thread ")))] == identity
        assert thread["cpu_ns"] / 1e9 == database.inclusive("CPUTIME (sec)", thread["thread"])[0]
        assert thread["launches"] == database.inclusive("GKER:COUNT", thread["thread"])[0]


def test_kernels_are_true(database: Database) -> None:
    """Launches and time of each name, added over all the contexts that have it below `<gpu kernel>`."""
    launches, seconds = database.inclusive("GKER:COUNT"), database.inclusive("GKER (sec)")
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0])
    for number, context in database.contexts.items():
        if database.contexts.get(context.parent, context).name == "<gpu kernel>":
            found[str(context.name)][0] += launches[number]
            found[str(context.name)][1] += seconds[number]
    expected = {kernel["name"]: [kernel["launches"], kernel["total_ns"] / 1e9] for kernel in TRUTH["kernels"]}
    assert {name: pytest.approx(values, rel=1e-12) for name, values in expected.items()} == found


def test_copies_are_true(database: Database) -> None:
    placeholders = {"H2D": "<gpu copyin>", "D2H": "<gpu copyout>", "D2D": "<gpu copy>"}
    seconds, count = database.inclusive("GXCOPY (sec)"), database.inclusive("GXCOPY:COUNT")
    for direction, copies in TRUTH["copies"].items():
        own = [n for n, context in database.contexts.items() if context.name == placeholders[direction]]
        size = database.inclusive(f"GXCOPY:{direction} (B)")
        assert (copies["count"], copies["bytes"]) == (sum(count[n] for n in own), sum(size[n] for n in own))
        assert copies["total_ns"] / 1e9 == pytest.approx(sum(seconds[n] for n in own), rel=1e-12)


def test_the_stream_shows_what_was_measured(database: Database) -> None:
    """Adding up the stream's trace by the contexts' names gives each kernel's time and the GPU's busy time."""
    (stream,) = (thread["thread"] for thread in TRUTH["threads"] if thread["kind"] == "gpu")
    elements = database.traces()[stream]
    found: dict[str, int] = defaultdict(int)
    for (start, context), (end, _) in pairwise(elements):
        if context:
            found[str(database.contexts[context].name)] += end - start
    kernels = {kernel["name"]: kernel["total_ns"] for kernel in TRUTH["kernels"]}
    assert kernels == {name: total for name, total in found.items() if not name.startswith("<gpu ")}
    assert TRUTH["gpu"]["busy_ns"] == sum(found.values())
    assert TRUTH["gpu"]["kernel_busy_ns"] == sum(kernels.values())
    assert 0 == elements[-1][1]
    assert 400 == sum(first[1] > 0 and second[1] > 0 for first, second in pairwise(elements))


def test_what_a_stream_shows_has_no_values(database: Database) -> None:
    """As in real databases a kernel's context in the trace is not the one that has its time; a copy's is."""
    shown = {context for elements in database.traces().values() for _, context in elements if context}
    gpu = {n for n in shown if database.contexts[database.contexts[n].parent].name == "<gpu kernel>"}
    assert gpu
    assert gpu.isdisjoint(database.inclusive("GKER (sec)"))
    copies = {n for n in shown if database.contexts[n].name == "<gpu copyin>"}
    assert copies
    assert copies <= set(database.inclusive("GXCOPY (sec)"))


def test_samples_of_threads_are_their_cpu_time(database: Database) -> None:
    """Every thread's samples stand in the trace, 5 ms apart while it runs; it is never not running twice in a row."""
    traces = database.traces()
    for thread in TRUTH["threads"]:
        if thread["kind"] == "gpu":
            continue
        elements = traces[thread["thread"]]
        assert thread["cpu_samples"] == sum(context > 0 for _, context in elements)
        assert {n for _, n in elements if n} <= set(database.contexts)
        steps = {second[0] - first[0] for first, second in pairwise(elements) if first[1] and second[1]}
        assert steps <= {PERIOD_NS}
        assert not any(first[1] == second[1] == 0 for first, second in pairwise(elements))
    first, last = database.span()
    assert (TRUTH["t0_unix_ns"], TRUTH["wall_ns"]) == (first, last - first)


def test_sums_of_parts() -> None:
    """GPUOP is the sum of all kinds of operation, STL_ANY of the other stalls, GINS the samples times their period."""
    totals = TRUTH["totals"]
    assert totals["GPUOP"] == pytest.approx(sum(totals[part] for part in GPU_PARTS), rel=1e-12)
    stalls = [value for name, value in totals.items() if name.startswith("GINS:STL_")]
    assert 2 * totals["GINS:STL_ANY"] == sum(stalls)
    assert TRUTH["samples"]["taken"] * 4_096 == totals["GINS"]
    assert TRUTH["samples"]["taken"] + TRUTH["samples"]["dropped"] < TRUTH["samples"]["expected"]
    assert 1 == pytest.approx(sum(stall["share"] for stall in TRUTH["stalls"].values()), rel=1e-12)


def test_it_looks_like_the_published_case() -> None:
    """A GPU that is nearly idle, half of its time copying, with short kernels that wait for memory first of all."""
    gpu = TRUTH["gpu"]
    assert 7_000 <= gpu["launches"] <= 8_000
    assert 5_000 < gpu["mean_kernel_ns"] < 10_000
    assert gpu["busy_share_of_wall"] < 0.005
    assert 0.45 < gpu["copy_share_of_kernels_and_copies"] < 0.6
    assert "gmem" == max(TRUTH["stalls"], key=lambda reason: TRUTH["stalls"][reason]["share"])
    assert TRUTH["by_entry"]["application thread"]["GKER"] > TRUTH["by_entry"]["main thread"]["GKER"]


def test_hatchet_reads_the_main_thread(database: Database) -> None:
    """Hatchet's own reader, which knows one entry point, finds the main thread's times, launches and contexts."""
    import hatchet

    wanted = ["time", "gker", "gker:count", "gxcopy:h2d", "gins:stl_gmem"]
    frame = hatchet.GraphFrame.from_hpctoolkit_latest(str(SAMPLE / DATABASE), metric_names=wanted)
    (root,) = frame.graph.roots
    expected = TRUTH["by_entry"]["main thread"]
    found = frame.dataframe.loc[root]
    assert expected["CPUTIME"] == found["time (inc)"]
    assert [expected[name.upper()] for name in wanted[1:]] == [found[f"{name} (inc)"] for name in wanted[1:]]
    top: dict[int, Any] = {}
    for number, context in database.contexts.items():  # callers come first
        top[number] = top.get(context.parent, context.name)
    assert list(top.values()).count("main thread") == len(frame.dataframe)


def test_perfkit_loads_the_truth(profile: Any) -> None:
    tree, values, stalls, trace = (profile.table(name) for name in ("CALLTREE", "CALL_METRICS", "STALLS", "TRACE"))
    roots = values.merge(tree.loc[tree["parent"].isna(), ["node", "entry"]], on="node")
    for entry, expected in TRUTH["by_entry"].items():
        own = roots[roots["entry"] == entry]
        assert expected == dict(zip(own["metric"], own["inclusive"], strict=True))
    sums = values.groupby("metric", observed=True)["exclusive"].sum().to_dict()
    assert pytest.approx(TRUTH["totals"], rel=1e-12) == sums
    assert values["exclusive"].min() >= 0
    shares = {reason: stall["instructions"] for reason, stall in TRUTH["stalls"].items()}
    assert shares == stalls.groupby("reason", observed=True)["value"].sum().to_dict()
    crew = profile.table("THREADS")
    names = ["thread", "kind", "name"]
    assert [[t[name] for name in names] for t in TRUTH["threads"]] == crew[names].to_numpy().tolist()
    gpu = trace[trace["thread"].isin(crew.loc[crew["kind"] == "gpu", "thread"])]
    assert TRUTH["gpu"]["busy_ns"] == gpu["dur_ns"].sum()
    assert (TRUTH["wall_ns"], TRUTH["t0_unix_ns"]) == tuple(profile.capture.loc[0, ["dur_ns", "t0_unix_ns"]])


def test_nothing_is_missing_and_it_says_that_it_is_simulated(database: Database, profile: Any) -> None:
    assert () == profile.missing
    paths = ("CALLTREE", "CALL_METRICS", "STALLS", "THREADS", "THREAD_METRICS", "TRACE")
    assert all(len(profile.table(name)) for name in paths)
    assert f"SIMULATED {TRUTH['simulated']}" == database.title[1]
    assert any(TRUTH["simulated"] in note for note in profile.notes)
