"""perfkit reads what the writers of Kineto traces, pages of counters and HPCToolkit databases say is true."""

import json
from pathlib import Path
from typing import Any

import pytest
from counted import page
from frames import tuples

import perfkit
from make import cases, hpctoolkit
from make.hpctoolkit import Form, Metric
from make.kineto import ranks
from perfkit.analysis import calltree, communication, steps, timeline
from perfkit.analysis.communication import imbalance

SAMPLE = Path(__file__).parents[2] / "data" / "dlrm_h100"
TRUTH = json.loads((SAMPLE / "dlrm_h100.truth.json").read_text())
COPIES = {"H2D": "<gpu copyin>", "D2H": "<gpu copyout>", "D2D": "<gpu copy>"}
HOSTILE = "Straße <b>\N{CJK UNIFIED IDEOGRAPH-6838}</b> '\"\\ "


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[perfkit.Run, dict[str, Any]]:
    """Four ranks of which rank 2 is late, and what is true of them."""
    folder = tmp_path_factory.mktemp("ranks")
    truth = ranks(folder, ranks=4, events=1_500, straggler=2)
    return perfkit.load(folder), truth


def test_every_rank_says_who_it_is(late: tuple[perfkit.Run, dict[str, Any]]) -> None:
    run, truth = late
    assert [0, 1, 2, 3] == [profile.rank for profile in run.profiles]
    assert [truth["kernels"]] * 4 == run.kernels.groupby("rank").size().tolist()
    assert [truth["collectives"]] * 4 == run.collectives.groupby("rank").size().tolist()
    assert {(truth["bytes"], 4)} == set(
        zip(run.collectives["bytes"], run.collectives["ranks"], strict=True)
    )
    assert [truth["steps"]] * 4 == steps.detect(run.ranges, run.kernels).groupby(
        "rank"
    ).size().tolist()


def test_computation_and_communication_are_known(late: tuple[perfkit.Run, dict[str, Any]]) -> None:
    run, truth = late
    parts = timeline.breakdown(run.kernels, run.copies)
    assert truth["computation_ns"] == parts["computation_ns"].tolist()
    assert truth["communication_ns"] == parts["exposed_communication_ns"].tolist()
    mean = sum(truth["computation_ns"]) / 4
    assert imbalance(parts["computation_ns"]) == pytest.approx(
        truth["computation_ns"][2] / mean - 1
    )


def test_the_late_rank_is_known(late: tuple[perfkit.Run, dict[str, Any]]) -> None:
    """Rank 2 comes last most often; waits add up to the truth's, and the latency is the shortest stay."""
    run, truth = late
    found = communication.stragglers(run.collectives)
    assert 2 == found["rank"].iloc[0]
    by_rank = found.sort_values("rank")
    assert truth["last_count"] == by_rank["last_count"].tolist()
    assert truth["wait_ns"] == by_rank["wait_ns"].tolist()
    matched = communication.matched(run.collectives)
    of_each = matched.groupby("collective")
    assert truth["skew_ns"] == of_each["wait_ns"].max().sum()
    assert {float(truth["latency_ns"])} == set(of_each["dur_ns"].min())
    assert matched["together"].all()


def test_cases_have_known_answers(tmp_path: Path) -> None:
    """3,003,000 double, 2,816,000 packed half (2, 2 and 4 a piece), and each tensor sum once."""
    truth = cases(tmp_path / "cases.csv")
    header, _, *rows = page(tmp_path / "cases.csv")
    assert list(truth) == [row[4] for row in rows]
    assert {"fp64_flops": 3_003_000} == truth["daxpy_kernel"]
    assert {"fp16_flops": 2_816_000} == truth["half2_kernel"]
    summed = [name for name in header if "tensor_src" in name and "sparsity" not in name]
    for row in rows[2:]:
        fields = dict(zip(header, row, strict=True))
        tensor = [int(fields[name].replace(",", "")) for name in summed if fields[name]]
        assert {"tensor_flops": sum(tensor)} == truth[row[4]]
    # Read back, each launch has the operations of its case, and of no other; the run says that it is simulated.
    run = perfkit.load(tmp_path / "cases.csv")
    columns = ["fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops"]
    found = run.launches.set_index("full_name")[columns]
    assert truth == {name: row.dropna().to_dict() for name, row in found.iterrows()}
    assert any("simulated" in note for note in run.notes)


@pytest.mark.parametrize(
    "metrics", [hpctoolkit.NVIDIA, hpctoolkit.NVIDIA_2026, hpctoolkit.AMD, hpctoolkit.INTEL]
)
@pytest.mark.parametrize("form", [Form(), Form(minor=7, spare_words=2, first_statistic=900)])
def test_perfkit_reads_what_is_true(
    tmp_path: Path, metrics: tuple[Metric, ...], form: Form
) -> None:
    """Contexts, and values by entry point and by thread, in the form of today and of a later minor version."""
    options: dict[str, Any] = {
        "metrics": metrics,
        "threads": 2,
        "ranks": 3,
        "word": HOSTILE,
        "form": form,
    }
    truth = hpctoolkit.contexts(tmp_path, contexts=1_000, **options)
    (profile,) = perfkit.load(tmp_path).profiles
    tree, values, crew = (
        profile.table(name) for name in ("CALLTREE", "CALL_METRICS", "THREAD_METRICS")
    )
    assert truth["entries"] == tree.groupby("entry", observed=True).size().to_dict()
    assert truth["depth"] == tree["depth"].max()
    roots = values.merge(tree.loc[tree["parent"].isna(), ["node", "entry"]], on="node")
    for name, by_entry in truth["by_entry"].items():
        own = roots[roots["metric"] == name.split(" ")[0]]
        assert {e: v for e, v in by_entry.items() if v} == dict(
            zip(own["entry"], own["inclusive"], strict=True)
        )
        threads = crew[crew["metric"] == name.split(" ")[0]].groupby("thread")["inclusive"].sum()
        assert (
            pytest.approx([value for value in truth["threads"][name] if value], rel=1e-12)
            == threads.tolist()
        )
    assert [0, 0, 1, 1, 2, 2] == profile.table("THREADS")["mpi_rank"].tolist()


def test_totals_threads_and_kernels_are_true() -> None:
    """31 threads, most of them idle, and a stream; times and launches by entry point, by thread and by kernel."""
    (profile,) = perfkit.load(SAMPLE).profiles
    assert () == profile.missing
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
    assert [[t[name] for name in names] for t in TRUTH["threads"]] == crew[
        names
    ].to_numpy().tolist()
    assert {"cpu": 31, "gpu": 1} == crew["kind"].value_counts().to_dict()
    assert 10 == sum(thread.get("cpu_samples", 0) > 0 for thread in TRUTH["threads"])
    of_thread = (
        profile.table("THREAD_METRICS")
        .groupby(["metric", "thread"], observed=True)["inclusive"]
        .sum()
    )
    for metric, key, unit in (("CPUTIME", "cpu_ns", 1e9), ("GKER:COUNT", "launches", 1)):
        expected = {t["thread"]: t[key] / unit for t in TRUTH["threads"] if t.get(key)}
        assert pytest.approx(expected, rel=1e-12) == of_thread[metric].to_dict()
    kernels = calltree.kernels(tree, values, stalls)
    told = [(kernel["name"], kernel["launches"], kernel["total_ns"]) for kernel in TRUTH["kernels"]]
    assert sorted(told) == sorted(
        tuples(kernels.round({"total_ns": 3}), "full_name", "launch_count", "total_ns")
    )
    for direction, copies in TRUTH["copies"].items():
        nodes = tree.loc[tree["name"] == COPIES[direction], "node"]
        own = values[values["node"].isin(nodes)].groupby("metric", observed=True)["inclusive"].sum()
        assert (copies["count"], copies["bytes"]) == (
            own["GXCOPY:COUNT"],
            own[f"GXCOPY:{direction}"],
        )
        assert copies["total_ns"] / 1e9 == pytest.approx(own["GXCOPY"], rel=1e-12)


def test_hatchet_reads_the_main_thread() -> None:
    """Hatchet's own reader, which knows one entry point, finds the main thread's times, launches and contexts."""
    import hatchet

    wanted = ["time", "gker", "gker:count", "gxcopy:h2d", "gins:stl_gmem"]
    frame = hatchet.GraphFrame.from_hpctoolkit_latest(
        str(SAMPLE / "hpctoolkit-dlrm-database"), metric_names=wanted
    )
    (root,) = frame.graph.roots
    expected = TRUTH["by_entry"]["main thread"]
    found = frame.dataframe.loc[root]
    assert expected["CPUTIME"] == found["time (inc)"]
    assert [expected[name.upper()] for name in wanted[1:]] == [
        found[f"{name} (inc)"] for name in wanted[1:]
    ]
