"""The simulated training of a DLRM, as HPCToolkit would have recorded it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from databases import Database

import make
import perfkit
from make import SAMPLES, dlrm_h100
from perfkit.tables import TABLES

DATABASE, TRUTH = "hpctoolkit-dlrm-database", "dlrm_h100.truth.json"
PERIOD_NS = 5_000_000
GPU_PARTS = ("GKER", "GXCOPY", "GMSET", "GMEM", "GSYNC")


@pytest.fixture(scope="module")
def run(made: Callable[[str], Path]) -> Path:
    """The simulated run, written once."""
    return made("dlrm_h100")


@pytest.fixture(scope="module")
def database(run: Path) -> Database:
    """Its database, read field by field."""
    return Database(run / DATABASE)


@pytest.fixture(scope="module")
def truth(run: Path) -> dict[str, Any]:
    """What the simulation says is true."""
    return json.loads((run / TRUTH).read_text())


def names(database: Database) -> dict[str, str]:
    """Metrics: name without unit to name in the file."""
    return {metric.name.split(" (")[0]: metric.name for metric in database.metrics}


def below(database: Database, entry: str) -> set[int]:
    """The contexts listed below an entry point, itself included."""
    found: dict[int, str] = {}
    for number in database.contexts:
        top = number
        while database.contexts[top].parent:
            top = database.contexts[top].parent
        found[number] = str(database.contexts[top].name)
    return {number for number, name in found.items() if name == entry}


def test_the_command_writes_it(run: Path, tmp_path: Path) -> None:
    """`python -m make dlrm_h100` is this function, and writes the same bytes again."""
    assert dlrm_h100 is SAMPLES["dlrm_h100"]
    command = [sys.executable, "-m", "make", "dlrm_h100", "--out", str(tmp_path / "again")]
    subprocess.run(command, cwd=Path(make.__file__).parents[1], check=True)
    files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())
    assert [Path(TRUTH), *(Path(DATABASE, f"{name}.db") for name in ("cct", "meta", "profile", "trace"))] == files
    assert all((run / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)


def test_totals_are_true(database: Database, truth: dict[str, Any]) -> None:
    """Context 0 and the entry points have the sums over the operations, metric by metric, to the last bit."""
    assert set(truth["totals"]) == set(names(database))
    for name, stored in names(database).items():
        inclusive = database.inclusive(stored)
        assert truth["totals"][name] == inclusive[0], name
        by_entry = {entry: inclusive[context] for entry, context in database.entries().items()}
        assert {entry: values.get(name, 0) for entry, values in truth["by_entry"].items()} == by_entry, name


def test_points_add_up_to_the_totals(database: Database, truth: dict[str, Any]) -> None:
    """The sum of the point values of all contexts, hidden ones too, is the total of every metric."""
    points: dict[str, float] = defaultdict(float)
    for metric in database.metrics:
        number = metric.statistics["point"]
        for values in database.profiles[0].values.values():
            points[metric.name] += values.get(number, 0)
    found = {name: points[stored] for name, stored in names(database).items()}
    assert pytest.approx(truth["totals"], rel=1e-12) == found


def test_threads_are_true(database: Database, truth: dict[str, Any]) -> None:
    """31 threads, most of them idle, and a stream; CPU time and launches of each are those of its operations."""
    assert 31 + 1 == len(truth["threads"])
    assert 10 == sum(thread.get("cpu_samples", 0) > 0 for thread in truth["threads"])
    for thread in truth["threads"]:
        identity = [(kind, physical) for kind, _, _, physical in database.profiles[thread["thread"]].identity[1:]]
        if thread["kind"] == "gpu":
            assert [("GPUCONTEXT", 1), ("GPUSTREAM", 7)] == identity
            assert not database.profiles[thread["thread"]].values
            continue
        assert [("THREAD", int(thread["name"].removeprefix("thread ")))] == identity
        assert thread["cpu_ns"] / 1e9 == database.inclusive("CPUTIME (sec)", thread["thread"])[0]
        assert thread["launches"] == database.inclusive("GKER:COUNT", thread["thread"])[0]


def test_kernels_are_true(database: Database, truth: dict[str, Any]) -> None:
    """Launches and time of each name, added over all the contexts that have it below `<gpu kernel>`."""
    launches, seconds = database.inclusive("GKER:COUNT"), database.inclusive("GKER (sec)")
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0])
    for number, context in database.contexts.items():
        if database.contexts.get(context.parent, context).name == "<gpu kernel>":
            found[str(context.name)][0] += launches[number]
            found[str(context.name)][1] += seconds[number]
    expected = {kernel["name"]: [kernel["launches"], kernel["total_ns"] / 1e9] for kernel in truth["kernels"]}
    assert {name: pytest.approx(values, rel=1e-12) for name, values in expected.items()} == found


def test_copies_are_true(database: Database, truth: dict[str, Any]) -> None:
    """Time and bytes of each direction are those of its placeholder in the tree."""
    placeholders = {"H2D": "<gpu copyin>", "D2H": "<gpu copyout>", "D2D": "<gpu copy>"}
    seconds, count = database.inclusive("GXCOPY (sec)"), database.inclusive("GXCOPY:COUNT")
    for direction, copies in truth["copies"].items():
        own = [n for n, context in database.contexts.items() if context.name == placeholders[direction]]
        size = database.inclusive(f"GXCOPY:{direction} (B)")
        assert (copies["count"], copies["bytes"]) == (sum(count[n] for n in own), sum(size[n] for n in own))
        assert copies["total_ns"] / 1e9 == pytest.approx(sum(seconds[n] for n in own), rel=1e-12)


def test_the_stream_shows_what_was_measured(database: Database, truth: dict[str, Any]) -> None:
    """Adding up the stream's trace by the contexts' names gives each kernel's time and the GPU's busy time."""
    (stream,) = (thread["thread"] for thread in truth["threads"] if thread["kind"] == "gpu")
    elements = database.traces()[stream]
    found: dict[str, int] = defaultdict(int)
    for (start, context), (end, _) in pairwise(elements):
        if context:
            found[str(database.contexts[context].name)] += end - start
    kernels = {kernel["name"]: kernel["total_ns"] for kernel in truth["kernels"]}
    assert kernels == {name: total for name, total in found.items() if not name.startswith("<gpu ")}
    assert truth["gpu"]["busy_ns"] == sum(found.values())
    assert truth["gpu"]["kernel_busy_ns"] == sum(kernels.values())
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


def test_samples_of_threads_are_their_cpu_time(database: Database, truth: dict[str, Any]) -> None:
    """Every thread's samples stand in the trace, 5 ms apart while it runs; it is never not running twice in a row."""
    traces = database.traces()
    for thread in truth["threads"]:
        if thread["kind"] == "gpu":
            continue
        elements = traces[thread["thread"]]
        assert thread["cpu_samples"] == sum(context > 0 for _, context in elements)
        assert {n for _, n in elements if n} <= set(database.contexts)
        steps = {second[0] - first[0] for first, second in pairwise(elements) if first[1] and second[1]}
        assert steps <= {PERIOD_NS}
        assert not any(first[1] == second[1] == 0 for first, second in pairwise(elements))


def test_the_traces_span_the_program(database: Database, truth: dict[str, Any]) -> None:
    """From the start of the main thread to its end, with absolute times."""
    first, last = database.span()
    assert (truth["t0_unix_ns"], truth["wall_ns"]) == (first, last - first)


def test_sums_of_parts(truth: dict[str, Any]) -> None:
    """GPUOP is the sum of all kinds of operation, STL_ANY of the other stalls, GINS the samples times their period."""
    totals = truth["totals"]
    assert totals["GPUOP"] == pytest.approx(sum(totals[part] for part in GPU_PARTS), rel=1e-12)
    stalls = [value for name, value in totals.items() if name.startswith("GINS:STL_")]
    assert 2 * totals["GINS:STL_ANY"] == sum(stalls)
    assert truth["samples"]["taken"] * 4_096 == totals["GINS"]
    assert truth["samples"]["taken"] + truth["samples"]["dropped"] < truth["samples"]["expected"]
    assert 1 == pytest.approx(sum(stall["share"] for stall in truth["stalls"].values()), rel=1e-12)


def test_it_looks_like_the_published_case(truth: dict[str, Any]) -> None:
    """A GPU that is nearly idle, half of its time copying, with short kernels that wait for memory first of all."""
    gpu = truth["gpu"]
    assert 7_000 <= gpu["launches"] <= 8_000
    assert 5_000 < gpu["mean_kernel_ns"] < 10_000
    assert gpu["busy_share_of_wall"] < 0.005
    assert 0.45 < gpu["copy_share_of_kernels_and_copies"] < 0.6
    assert "gmem" == max(truth["stalls"], key=lambda reason: truth["stalls"][reason]["share"])
    assert truth["by_entry"]["application thread"]["GKER"] > truth["by_entry"]["main thread"]["GKER"]


def test_python_frames_are_logical(database: Database) -> None:
    """Every function in a .py file has the module `<logical python>`, and its lines are in the same file."""
    functions = [c for c in database.contexts.values() if c.kind == "function" and str(c.file).endswith(".py")]
    assert len(functions) > 50
    assert {"<logical python>"} == {context.function_module for context in functions}
    lines = [c for c in database.contexts.values() if c.kind == "line" and str(c.file).endswith(".py")]
    above = [database.contexts[line.parent] for line in lines]
    assert all(a.kind == "entry" or a.file == line.file for a, line in zip(above, lines, strict=True))


def test_hatchet_reads_the_main_thread(run: Path, database: Database, truth: dict[str, Any]) -> None:
    """Hatchet's own reader, which knows one entry point, finds the main thread's times, launches and contexts."""
    import hatchet

    wanted = ["time", "gker", "gker:count", "gxcopy:h2d", "gins:stl_gmem"]
    frame = hatchet.GraphFrame.from_hpctoolkit_latest(str(run / DATABASE), metric_names=wanted)
    (root,) = frame.graph.roots
    expected = truth["by_entry"]["main thread"]
    found = frame.dataframe.loc[root]
    assert expected["CPUTIME"] == found["time (inc)"]
    assert [expected[name.upper()] for name in wanted[1:]] == [found[f"{name} (inc)"] for name in wanted[1:]]
    assert len(below(database, "main thread")) == len(frame.dataframe)


def test_perfkit_loads_the_truth(run: Path, truth: dict[str, Any]) -> None:
    """Roots, exclusive values, stalls, threads and traces of the tables are those of the operations."""
    (profile,) = perfkit.load(run).profiles
    tree, values, stalls, trace = (profile.table(name) for name in ("CALLTREE", "CALL_METRICS", "STALLS", "TRACE"))
    roots = values.merge(tree.loc[tree["parent"].isna(), ["node", "entry"]], on="node")
    for entry, expected in truth["by_entry"].items():
        own = roots[roots["entry"] == entry]
        assert expected == dict(zip(own["metric"], own["inclusive"], strict=True))
    assert (
        pytest.approx(truth["totals"], rel=1e-12)
        == values.groupby("metric", observed=True)["exclusive"].sum().to_dict()
    )
    assert values["exclusive"].min() >= 0
    shares = {reason: stall["instructions"] for reason, stall in truth["stalls"].items()}
    assert shares == stalls.groupby("reason", observed=True)["value"].sum().to_dict()
    crew = profile.table("THREADS")
    assert [(t["thread"], t["kind"], t["name"]) for t in truth["threads"]] == list(
        zip(crew["thread"], crew["kind"], crew["name"], strict=True)
    )
    gpu = trace[trace["thread"].isin(crew.loc[crew["kind"] == "gpu", "thread"])]
    assert truth["gpu"]["busy_ns"] == gpu["dur_ns"].sum()
    assert (truth["wall_ns"], truth["t0_unix_ns"]) == tuple(profile.capture.loc[0, ["dur_ns", "t0_unix_ns"]])


def test_perfkit_knows_that_it_is_simulated(run: Path, truth: dict[str, Any]) -> None:
    """The database's description says so, and the note that a report shows."""
    assert "no GPU ran" in truth["simulated"]
    assert f"SIMULATED {truth['simulated']}" == Database(run / DATABASE).title[1]
    assert any(truth["simulated"] in note for note in perfkit.load(run).notes)


def test_nothing_is_missing(run: Path) -> None:
    """Every call-path table has rows, so that all sections of a report can be shown."""
    (profile,) = perfkit.load(run).profiles
    assert () == profile.missing
    paths = ("CALLTREE", "CALL_METRICS", "STALLS", "THREADS", "THREAD_METRICS", "TRACE")
    assert set(paths) <= set(TABLES)
    assert all(len(profile.table(name)) for name in paths)


def test_another_seed_keeps_the_program(tmp_path: Path, truth: dict[str, Any]) -> None:
    """Launches, copies and bytes do not depend on the seed, and durations do."""
    other = json.loads((dlrm_h100(tmp_path, seed=1) / TRUTH).read_text())
    assert truth["gpu"]["launches"] == other["gpu"]["launches"]
    assert truth["totals"]["GXCOPY:H2D"] == other["totals"]["GXCOPY:H2D"]
    assert truth["wall_ns"] != other["wall_ns"]
