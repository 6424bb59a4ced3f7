"""The views show what the analyses say of a choice, still and live."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from frames import api_calls, collectives, copies, kernels, lasting
from megatron import training
from sampled import devices, samples, together
from widgets.viewed import (
    Chooser,
    chosen,
    csv,
    recorded,
    seen,
    sentences,
    small,
    specs,
    still,
    title,
    values,
)

import perfkit
from make.kineto import ranks as simulated_ranks
from perfkit import analysis, diagnosis
from perfkit.charts.tables import Searchable
from perfkit.diagnosis import machine
from perfkit.format import Shown as Table
from perfkit.logs.views import monitor, states
from perfkit.profile import Profile
from perfkit.report import key_findings
from perfkit.run import Run
from perfkit.widgets import views
from perfkit.widgets.live import Live, Shown, bundle

DATA = Path(__file__).parents[2] / "data"
WINDOW = 9_700_000_000, 12_000_000_000  # ns; some fifty steps of the sample run
OF_LOGS = {"monitor": monitor, "states": states}
VIEWS = {name: getattr(views, name) for name in views.__all__} | OF_LOGS
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
EVERY = [*(name for name in views.__all__ if name != "compare"), *OF_LOGS]
# What each view asks of a recording, as the sentence without it names it.
ASKED = {
    "call_paths": ("call paths", "hpcrun"),
    "collectives": ("collectives", "nccl-tests"),
    "gaps": ("operations of a GPU", "nsys profile"),
    "kernels": ("kernels", "nsys profile"),
    "memory": ("readings of the allocator's memory", "perfkit record torch"),
    "monitor": ("readings of the GPUs", "nvidia-smi --query-gpu="),
    "operators": ("operators", "perfkit record torch"),
    "ownership": ("ranges", "torch.cuda.nvtx.range"),
    "roofline": ("launches with counters", "ncu --set full"),
    "timeline": ("kernels and copies", "nsys profile"),
    "training": ("iterations", "Megatron"),
    "transfers": ("copies", "nsys profile"),
}


@pytest.fixture(scope="module")
def mlp() -> Run:
    return perfkit.load(DATA / "mlp_a100")


@pytest.fixture(scope="module")
def dlrm() -> Run:
    return perfkit.load(DATA / "dlrm_h100")


@pytest.mark.parametrize("window", [(), WINDOW])
def test_kernels_hold_all_kernel_time(mlp: Run, window: tuple[int, ...]) -> None:
    inside = mlp.kernels
    ends = inside["start_ns"] + inside["dur_ns"]
    first, last = window or (0, int(ends.max()))
    total = int((ends.clip(upper=last) - inside["start_ns"].clip(lower=first)).clip(lower=0).sum())
    view = still(views.kernels(chosen(mlp, window=window), top=3))
    bars, _durations = specs(view)
    rows = values(bars, "share")
    assert 4 == len(rows)
    assert total == csv(view)["total_ns"].sum()
    assert rows["time"].sum() * 1e6 == pytest.approx(total)
    assert title(bars).startswith(csv(view)["name"][0])
    some = csv(seen(views.kernels, mlp, kernels="gemm"))
    assert {"gemm"} == set(some["family"])
    assert some["count"].sum() == mlp.kernels["name"].astype(str).str.contains("gemm").sum()


@pytest.mark.parametrize("part", ["range", "phase", "operator", "module", "line"])
def test_owners_hold_all_kernel_time(mlp: Run, part: str) -> None:
    chosen_part = chosen(mlp, window=WINDOW) if part in ("range", "phase") else chosen(mlp)
    view = still(views.ownership(chosen_part, part=part))
    of_part = chosen_part if part in ("range", "phase") else chosen_part.framework
    total = analysis.kernels.summary(of_part.kernels, window=of_part.window)["total_ns"].sum()
    assert total == csv(view)["exclusive_ns"].sum()
    for drawn in specs(view):
        assert values(drawn, "begin").query("row == 0")["share"].tolist() == ["100 %"]


@pytest.mark.parametrize("window", [(), WINDOW])
def test_gaps_add_up_to_the_idle_time(mlp: Run, window: tuple[int, ...]) -> None:
    view = seen(views.gaps, mlp, window=window)
    busy = analysis.timeline.busy(mlp.kernels, mlp.copies, window=window or None)
    idle = int((busy["span_ns"] - busy["device_busy_ns"]).sum())
    causes, lengths = specs(view)
    assert values(causes, "share")["time"].sum() * 1e9 == pytest.approx(idle)
    assert (
        values(lengths, "top")["top"] - values(lengths, "top")["bottom"]
    ).sum() * 1e9 == pytest.approx(idle)
    longest = csv(view)["dur_ns"]
    assert longest.is_monotonic_decreasing
    assert longest.max() <= idle


def test_views_return_their_frame_and_causes_in_the_words_of_the_chart(mlp: Run) -> None:
    view = seen(views.gaps, mlp)
    causes, _ = specs(view)
    assert view.data is not None
    assert set(view.data["cause"].dropna()) <= set(values(causes, "cause")["cause"])
    live = views.kernels(Chooser(selection=chosen(mlp)))
    assert live.data["total_ns"].sum() == mlp.kernels["dur_ns"].sum()
    assert {"name", "gpu", "net_bytes"} <= set(seen(views.memory, mlp).data)
    assert seen(views.timeline, mlp).data is None


def test_findings_lead_to_their_longest_moment(mlp: Run) -> None:
    found = diagnosis.findings(mlp)
    seen_at = {finding.rule: finding.seen_at for finding in found}
    gaps = seen(views.gaps, mlp).data
    (gap,) = (
        row for _, row in gaps.iterrows() if row["start_ns"] == seen_at["idle_data_loading"][0]
    )
    longest = mlp.copies.loc[mlp.copies["dur_ns"].idxmax()]
    for rule, row in {"idle_data_loading": gap, "copies_pageable": longest}.items():
        assert (row["start_ns"], row["dur_ns"]) == seen_at[rule]
    html = key_findings(found, diagnosis.figures(mlp)).html
    assert f'data-leads=\'{{"start_ns":{gap["start_ns"]},"dur_ns":{gap["dur_ns"]}}}\'' in html
    assert html.count("data-leads='{") == sum(at is not None for at in seen_at.values())


def graphs() -> Run:
    """Graph launches without operations: idle time that there was not."""
    calls = [lasting(n * 100, 5, "cudaGraphLaunch", correlation=n) for n in range(10)]
    return recorded(KERNELS=small().kernels, API_CALLS=api_calls(*calls))


REFUSED = [
    ("gaps", small, (), ["perfkit cannot tell why the GPU was idle: "]),
    ("gaps", graphs, (), ["perfkit cannot tell when the GPU was idle: "]),
    (
        "gaps",
        lambda: small(1000),
        (10, 90),
        ["No GPU was idle in what is chosen (all GPUs, 1e-08 s to 9e-08 s, all k"],
    ),
    ("ranks", small, (), ["The run has one rank and no collective."]),
    (
        "machine",
        lambda: recorded(DEVICES=devices("A100", "H100")),
        (),
        ["The run has GPUs of several kinds (A100, H"],
    ),
    (
        *(
            "transfers",
            lambda: recorded(COPIES=copies(lasting(0, 10, bytes=10**6))),
            (),
        ),
        [
            "No copy is of 64 KiB or less.",
            "No asynchronous copy has to wait because its memory is pageable.",
        ],
    ),
]


@pytest.mark.parametrize(("name", "run", "window", "said"), REFUSED)
def test_what_cannot_be_told_is_a_sentence(
    name: str, run: Callable[[], Run], window: tuple[int, ...], said: list[str]
) -> None:
    view = seen(VIEWS[name], run(), window=window)
    assert all(text.startswith(start) for text, start in zip(sentences(view), said, strict=True))
    if run is small and name == "gaps":  # lengths without causes
        assert (1, [90]) == (len(specs(view)), csv(view)["dur_ns"].tolist())


def test_timeline_holds_the_busy_time(mlp: Run) -> None:
    (lanes,) = specs(seen(views.timeline, mlp, window=WINDOW))
    rows = values(lanes, "kind")
    seconds = (rows["busy"] * (rows["end"] - rows["start"])).groupby(rows["kind"]).sum()
    parts = analysis.timeline.breakdown(mlp.kernels, mlp.copies, window=WINDOW)
    # the chart rounds the share of each bin to six decimals
    assert seconds["computation"] * 1e9 == pytest.approx(parts["computation_ns"].sum(), rel=1e-5)
    assert {"computation", "copy"} == set(seconds.index)


def test_transfers_hold_all_bytes(mlp: Run) -> None:
    view = seen(views.transfers, mlp)
    every, small = (part for part in view.parts if not isinstance(part, Searchable))
    assert len(analysis.memory.copied(mlp.copies)) == bundle(every)["text/html"].count("<tr>") - 1
    assert "Copies of at most 64 KiB: 3 rows" in repr(small)
    waiting = mlp.copies[
        mlp.copies["src_memory"].eq("pageable") | mlp.copies["dst_memory"].eq("pageable")
    ]
    assert len(csv(view)) == 1000 < len(waiting)
    part = seen(views.transfers, mlp, window=WINDOW)
    assert csv(part)["start_ns"].between(*WINDOW).all()


def test_roofline_places_each_launch(mlp: Run) -> None:
    view = seen(views.roofline, mlp)
    assert mlp.launches["dur_ns"].tolist() == csv(view)["dur_ns"].tolist()
    assert mlp.launches["launch"].tolist() == csv(view, 1)["launch"].tolist()
    assert "A100" in repr(view)
    (few,) = specs(seen(views.roofline, mlp, kernels="softmax"))
    assert title(few).startswith("softmax")


def test_operators_hold_the_frameworks_kernel_time(mlp: Run) -> None:
    traced = mlp.of("torch_trace")
    for by in ("name", "shapes"):
        view = still(views.operators(chosen(mlp), by=by))
        assert traced.kernels["dur_ns"].sum() == csv(view)["gpu_self_ns"].sum()
    assert "shapes" in csv(view)
    (bars,) = specs(view)
    with pytest.raises(ValueError, match="by: 'stack' is neither"):
        views.operators(chosen(mlp), by="stack")
    rows = values(bars, "slot")
    gpu = rows.loc[rows["slot"].eq("GPU"), "time"].sum()
    assert gpu * 1e6 == pytest.approx(traced.kernels["dur_ns"].sum())


def test_memory_and_monitor_show_what_was_read(mlp: Run) -> None:
    (levels,) = specs(seen(views.memory, mlp))
    allocated = mlp.samples.loc[mlp.samples["metric"].eq("memory_allocated_bytes"), "value"]
    assert values(levels, "most")["most"].max() * 1e6 == pytest.approx(allocated.max())
    # the allocator's readings, from another time, do not stretch the axis
    view = seen(monitor, mlp)
    (panels,) = specs(view)
    assert "7,852 readings of 2 metrics over 19.6 s" in json.dumps(panels, ensure_ascii=False)
    assert ["cannot tell"] == csv(view)["verdict"].unique().tolist()
    read = together(*(samples(rank=rank, gpu_busy_frac=[0.9, 0.8, 0.9]) for rank in (0, 1)))
    assert {0, 1} == set(csv(seen(monitor, recorded(SAMPLES=read)))["rank"])


def test_call_paths_show_gpu_and_cpu(dlrm: Run) -> None:
    view = seen(views.call_paths, dlrm)
    gpu, cpu = specs(view)
    assert "of the GPU time" in title(gpu)
    assert "of the CPU time" in title(cpu)
    operations = dlrm.call_metrics[dlrm.call_metrics["metric"].eq("GPUOP")]
    assert csv(view)["exclusive"].sum() == pytest.approx(operations["exclusive"].sum())


@pytest.mark.parametrize(
    ("kept", "said"), [("CPUTIME", "No GPU operation was"), ("GPUOP", "No CPU time was")]
)
def test_call_paths_of_one_side_say_how_to_record_the_other(
    dlrm: Run, kept: str, said: str
) -> None:
    metrics = dlrm.call_metrics[dlrm.call_metrics["metric"].eq(kept)]
    view = seen(views.call_paths, recorded(CALLTREE=dlrm.calltree, CALL_METRICS=metrics))
    (sentence,) = sentences(view)
    assert (1, True) == (len(specs(view)), sentence.startswith(said))


def test_ranks_name_who_is_late(tmp_path: Path) -> None:
    truth = simulated_ranks(tmp_path, ranks=4, events=2_000, straggler=2)
    run = perfkit.load(tmp_path)
    view = seen(views.ranks, run)
    _, steps, waits, lateness, bandwidth = specs(view)
    assert title(steps).startswith(
        "All ranks take each step in the same time"
    )  # it ends where all wait for rank 2
    assert title(waits).startswith("Rank 2 comes last to 100 %")
    assert title(lateness).startswith("Rank 2 comes ")
    assert "GB/s" in json.dumps(bandwidth)
    assert truth["collectives"] * 4 == csv(view)["count"].sum()
    starts = run.collectives["start_ns"]
    part = seen(views.ranks, run, window=(0, int(starts.median())))
    assert (starts < starts.median()).sum() == csv(part)["count"].sum() < 4 * truth["collectives"]
    assert 1 == len(seen(views.ranks, run, window=(0, int(starts.min()))).parts)  # the times alone
    (said,) = sentences(seen(views.ranks, run, ranks=(1,)))
    assert said.startswith(
        "perfkit cannot tell which rank waits: this needs collectives of several ranks"
    )


def test_ranks_whose_clocks_disagree() -> None:
    held = {"bytes": 0, "ranks": 2, "dur_ns": 10.0, "group": "0"}
    run = recorded(
        COLLECTIVES=collectives(
            *({**held, "rank": rank, "start_ns": 1000 * rank} for rank in (0, 1))
        )
    )
    view = seen(views.ranks, run)
    assert [] == specs(view)
    (said,) = sentences(view)
    assert said.startswith(
        "perfkit cannot tell which rank waits: stragglers: in none of 1 collectives all ranks"
    )


def test_ranks_are_compared_by_kernels_without_sizes(profiles: Path) -> None:
    """Eight real ranks of a trace from before PyTorch 2.4: who comes last, what it costs, and that the clocks agree."""
    folder = profiles / "torch" / "facebookresearch__param__dlrm_kineto"
    view = seen(views.ranks, perfkit.load(folder))
    (said,) = sentences(view)
    assert said.startswith("The clocks of 8 ranks agree within 2.97 µs")
    assert any(
        "Rank 7 comes last to 62.5 % of 8 collectives" in title(spec) for spec in specs(view)
    )


@pytest.mark.parametrize("name", ASKED)
def test_what_was_not_recorded_is_said_with_what_records_it(name: str) -> None:
    what, tool = ASKED[name]
    (said,) = sentences(seen(VIEWS[name], Run([])))
    assert said.startswith(f"No {what} were recorded. What records them: ")
    assert tool in said


def test_the_recordings_own_remedy_comes_first() -> None:
    missing = perfkit.profile.Missing("KERNELS", "no CUDA kernels", "nsys profile --trace=cuda")
    profile = Profile("nsys", Path("p"), recorded().capture, {}, (missing,))
    (said,) = sentences(seen(views.kernels, Run([profile])))
    assert said == "No kernels were recorded. What records them: nsys profile --trace=cuda."


@pytest.mark.parametrize("name", ["kernels", "timeline", "transfers", "operators", "monitor"])
def test_an_empty_window_is_told_from_what_was_not_recorded(mlp: Run, name: str) -> None:
    start = 11_367_000_000  # inside the wait for the data of step 10
    view = seen(VIEWS[name], mlp, window=(start, start + 1000))
    (said,) = sentences(view)
    assert "in what is chosen (all GPUs, 11.367 s to 11.367 s, all kernels)" in said
    assert 1 == len(view.parts)


@pytest.mark.parametrize("name", ["kernels", "gaps", "timeline", "transfers"])
def test_hostile_names_are_text(name: str) -> None:
    pair = [lasting(n * 100, 10, HOSTILE, correlation=n) for n in range(3)]
    moved = [lasting(500 + n, 1, src_memory=HOSTILE, correlation=9) for n in range(2)]
    calls = [lasting(n * 100, 5, HOSTILE, correlation=n) for n in (0, 1, 2, 9)]
    run = recorded(KERNELS=kernels(*pair), COPIES=copies(*moved), API_CALLS=api_calls(*calls))
    view = seen(VIEWS[name], run)
    page = "".join(bundle(part).get("text/html", "") for part in view.parts)
    assert "<img" not in page
    assert "<script" not in page


@pytest.mark.parametrize("name", [name for name in EVERY if name != "timeline"])
def test_live_views_show_the_same(mlp: Run, name: str) -> None:
    explorer = Chooser(selection=chosen(mlp))
    live = VIEWS[name](explorer)
    assert isinstance(live, Live)
    explorer.selection = part = chosen(mlp, window=WINDOW)
    assert [bundle(one) for one in still(VIEWS[name](part)).parts] == [
        bundle(one) for one in live.parts
    ]


H100 = "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log"
NETWORKED = "nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log"
SECOND = 1_000_000_000


def medians(run: Run, **choice: Any) -> list[float]:
    return [step / 1e6 for step in machine.trainings(chosen(run, ranks=[0], **choice))["step_ns"]]


@pytest.fixture
def logs(tmp_path: Path) -> Run:
    """The same training on 1 and on 4 GPUs: a log each, ranks 0 and 1."""
    training(tmp_path / "one.log", gpus=1, ms=400)
    training(tmp_path / "two.log", gpus=4, ms=500, batch=32)
    return perfkit.load(tmp_path)


def tables(view: Shown) -> str:
    return "".join(bundle(part)["text/html"] for part in view.parts if isinstance(part, Table))


def test_machine_and_collectives_of_a_benchmark(profiles: Path) -> None:
    """The all-reduce of eight H100 at 482 GB/s lies above NVLink's 450 GB/s: the log says 482.27 at best."""
    run = perfkit.load(profiles / "monitor" / H100)
    (said,) = sentences(still(views.machine(chosen(run), peaks="/none.csv")))
    assert "/none.csv" in said
    view = seen(views.machine, run)
    assert ["The GPU is NVIDIA H100 80GB HBM3."] == sentences(view)
    assert {"989 TFLOP/s", "3.35 TB/s"} <= {
        *re.findall(r"[\d.]+ T[FB/LOPs]+", tables(view))
    }  # by the data sheet
    (roofline,) = specs(view)
    assert title(roofline).startswith("Memory limits")
    view = seen(views.collectives, run)
    (picture,) = specs(view)
    assert title(picture).startswith("All-reduce reaches up to 482 GB/s")
    assert values(picture, "least")["rate"].max() == pytest.approx(482.27, abs=0.005)
    assert [
        "Line rate: NVLink of NVIDIA H100 80GB HBM3, one direction, from its data sheet."
    ] == sentences(view)
    assert "Bus bandwidth of the largest messages" in repr(view)


def test_collectives_of_a_log_without_times(profiles: Path) -> None:
    run = perfkit.load(profiles / "monitor" / NETWORKED)
    view = seen(views.collectives, run)
    (drawn,) = specs(view)
    assert drawn["title"]["text"].startswith("56 of 67 connections")
    assert "NET" in tables(view)
    nowhere = perfkit.Selection(run, (7,), (), None, "")
    (said,) = sentences(still(views.collectives(nowhere)))
    assert said.startswith("No collectives in what is chosen (rank 7")


def test_share_of_the_peak_is_that_of_the_figure(profiles: Path, tmp_path: Path) -> None:
    peaks = tmp_path / "peaks.csv"
    peaks.write_text(
        "name_nvidia_smi,bf16_tensor_tflops,mem_bw_gbs\nmine,312,2000\n", encoding="utf-8"
    )
    run = perfkit.load(profiles / "monitor" / "deepspeed_flops_profiler_megatron_gpt.txt")
    figure = diagnosis.figures(run, peaks=str(peaks))["baseline_mfu_frac"]
    share = machine.share(chosen(run), peaks=str(peaks)).table.iloc[0]  # type: ignore[union-attr]
    assert share["iteration_mfu_frac"] == figure.value < share["mfu_frac"]
    shown = tables(still(views.training(chosen(run), peaks=str(peaks))))
    assert "1.9 %" == figure.text
    assert ">1.9</td>" in shown
    assert f">{100 * share['mfu_frac']:.1f}</td>" not in shown, "the rate of the two passes alone"


def test_training_on_several_numbers_of_gpus(logs: Run) -> None:
    """8 samples in 0.4 s on one GPU, 32 in 0.5 s on four: 80 % of four times as many, from medians 404 and 504 ms."""
    points, scaling = specs(seen(views.training, logs))
    assert {"log 0", "log 1"} == set(values(points, "log")["log"])
    assert "80" in title(scaling)
    (drawn,) = specs(view := seen(views.training, logs, ranks=[1]))
    assert title(drawn).startswith("The median iteration takes 504 ms, the first 1.50 s")
    assert any(said.startswith("How the training scales takes logs") for said in sentences(view))


def test_a_window_leaves_out_the_first_iterations(logs: Run) -> None:
    """The median of the last two of 403, 404 and 405 ms; the others are drawn fainter. None is left: a sentence."""
    view = seen(views.training, logs, ranks=[0], window=(5 * SECOND, 8 * SECOND))
    (drawn,) = specs(view)
    assert [0.3, 0.3, 0.3, 1.0, 1.0] == values(drawn, "shade")["shade"].tolist()
    assert title(drawn).startswith("The median iteration takes 404 ms")
    assert [404.5] == medians(logs, window=(5 * SECOND, 8 * SECOND))
    (said,) = sentences(seen(views.training, logs, window=(SECOND, SECOND + 1)))
    assert said.startswith("No iterations in what is chosen")
