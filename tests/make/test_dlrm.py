"""The simulated training of a DLRM, as HPCToolkit would have recorded it."""

import json
from pathlib import Path

import pytest
from frames import tuples

import perfkit
from perfkit.analysis import calltree
from perfkit.profile import Profile

SAMPLE, DATABASE = Path(__file__).parents[2] / "data" / "dlrm_h100", "hpctoolkit-dlrm-database"
TRUTH = json.loads((SAMPLE / "dlrm_h100.truth.json").read_text())
PERIOD_NS = 5_000_000
COPIES = {"H2D": "<gpu copyin>", "D2H": "<gpu copyout>", "D2D": "<gpu copy>"}


@pytest.fixture(scope="module")
def profile() -> Profile:
    (profile,) = perfkit.load(SAMPLE).profiles
    return profile


def test_totals_threads_and_kernels_are_true(profile: Profile) -> None:
    """31 threads, most of them idle, and a stream; times and launches by entry point, by thread and by kernel."""
    tree, values, stalls = (profile.table(name) for name in ("CALLTREE", "CALL_METRICS", "STALLS"))
    roots = values.merge(tree.loc[tree["parent"].isna(), ["node", "entry"]], on="node")
    for entry, expected in TRUTH["by_entry"].items():
        own = roots[roots["entry"] == entry]
        assert expected == dict(zip(own["metric"], own["inclusive"], strict=True))
    sums = values.groupby("metric", observed=True)["exclusive"].sum().to_dict()
    assert pytest.approx(TRUTH["totals"], rel=1e-12) == sums
    assert values["exclusive"].min() >= 0
    shares = {reason: stall["instructions"] for reason, stall in TRUTH["stalls"].items()}
    assert shares == stalls.groupby("reason", observed=True)["value"].sum().to_dict()
    crew, names = profile.table("THREADS"), ["thread", "kind", "name"]
    assert [[t[name] for name in names] for t in TRUTH["threads"]] == crew[names].to_numpy().tolist()
    assert {"cpu": 31, "gpu": 1} == crew["kind"].value_counts().to_dict()
    assert 10 == sum(thread.get("cpu_samples", 0) > 0 for thread in TRUTH["threads"])
    of_thread = profile.table("THREAD_METRICS").groupby(["metric", "thread"], observed=True)["inclusive"].sum()
    for metric, key, unit in (("CPUTIME", "cpu_ns", 1e9), ("GKER:COUNT", "launches", 1)):
        expected = {t["thread"]: t[key] / unit for t in TRUTH["threads"] if t.get(key)}
        assert pytest.approx(expected, rel=1e-12) == of_thread[metric].to_dict()
    kernels = calltree.kernels(tree, values, stalls)
    told = [(kernel["name"], kernel["launches"], kernel["total_ns"]) for kernel in TRUTH["kernels"]]
    assert sorted(told) == sorted(tuples(kernels.round({"total_ns": 3}), "full_name", "launch_count", "total_ns"))
    for direction, copies in TRUTH["copies"].items():
        nodes = tree.loc[tree["name"] == COPIES[direction], "node"]
        own = values[values["node"].isin(nodes)].groupby("metric", observed=True)["inclusive"].sum()
        assert (copies["count"], copies["bytes"]) == (own["GXCOPY:COUNT"], own[f"GXCOPY:{direction}"])
        assert copies["total_ns"] / 1e9 == pytest.approx(own["GXCOPY"], rel=1e-12)


def test_the_trace_shows_what_was_measured(profile: Profile) -> None:
    """The stream's trace adds up to each kernel's time, and a thread's samples stand 5 ms apart while it runs."""
    crew, trace = profile.table("THREADS"), profile.table("TRACE")
    of_gpu = trace["thread"].isin(crew.loc[crew["kind"] == "gpu", "thread"])
    tree = profile.table("CALLTREE").set_index("node")
    gpu, names = trace[of_gpu], tree["name"].reindex(trace.loc[of_gpu, "node"]).to_numpy()
    found = gpu["dur_ns"].groupby(names).sum()
    kernels = {kernel["name"]: kernel["total_ns"] for kernel in TRUTH["kernels"]}
    assert kernels == found[~found.index.str.startswith("<gpu ")].to_dict()
    assert (TRUTH["gpu"]["busy_ns"], TRUTH["gpu"]["kernel_busy_ns"]) == (found.sum(), sum(kernels.values()))
    samples = {t["thread"]: t["cpu_samples"] for t in TRUTH["threads"] if t.get("cpu_samples")}
    assert samples == trace[~of_gpu].groupby("thread").size().to_dict()
    assert {PERIOD_NS} == set(trace.loc[~of_gpu & ~trace["ended"], "dur_ns"])
    assert (TRUTH["wall_ns"], TRUTH["t0_unix_ns"]) == tuple(profile.capture.loc[0, ["dur_ns", "t0_unix_ns"]])
    # As in real databases a kernel's context in the trace is not the one that has its time; a copy's is.
    values = profile.table("CALL_METRICS")
    timed = {metric: set(values.loc[values["metric"] == metric, "node"]) for metric in ("GKER", "GXCOPY")}
    shown = {name: set(gpu.loc[names == name, "node"]) for name in found.index}
    assert timed["GKER"].isdisjoint(set().union(*(shown[name] for name in kernels)))
    assert shown[COPIES["H2D"]] <= timed["GXCOPY"]


def test_hatchet_reads_the_main_thread(profile: Profile) -> None:
    """Hatchet's own reader, which knows one entry point, finds the main thread's times, launches and contexts."""
    import hatchet

    wanted = ["time", "gker", "gker:count", "gxcopy:h2d", "gins:stl_gmem"]
    frame = hatchet.GraphFrame.from_hpctoolkit_latest(str(SAMPLE / DATABASE), metric_names=wanted)
    (root,) = frame.graph.roots
    expected = TRUTH["by_entry"]["main thread"]
    found = frame.dataframe.loc[root]
    assert expected["CPUTIME"] == found["time (inc)"]
    assert [expected[name.upper()] for name in wanted[1:]] == [found[f"{name} (inc)"] for name in wanted[1:]]
    assert (profile.table("CALLTREE")["entry"] == "main thread").sum() == len(frame.dataframe)


def test_nothing_is_missing_and_it_says_that_it_is_simulated(profile: Profile) -> None:
    assert () == profile.missing
    paths = ("CALLTREE", "CALL_METRICS", "STALLS", "THREADS", "THREAD_METRICS", "TRACE")
    assert all(len(profile.table(name)) for name in paths)
    assert any(TRUTH["simulated"] in note for note in profile.notes)
