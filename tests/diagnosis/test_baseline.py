"""Step 1: ceilings, bus bandwidth and training in figures, and the rules about slow links and trainings."""

from pathlib import Path

import pytest
from diagnosis.traces import told, values
from readers import nccl_files

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import headline
from perfkit.diagnosis import machine as diagnosis_machine
from perfkit.diagnosis.tiles import Tile
from perfkit.errors import ReadError
from perfkit.report.notebooks import sample

H100 = "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log"
POLARIS = "nccl_tests__alcf_polaris_nccl_2_18_n2.g4.2024-04-29-18-41-24_all_reduce_output.dat.1.txt"
OLD_NAME = "superbench__nccl_broadcast.log"
NETWORKED = "nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log"
MEGATRON = "superbench__megatron_deepspeed.log"
SLOW_OPTIMIZER = "deepspeed_flops_profiler_megatron_gpt.txt"
FLOPS_PROFILER = "deepspeed_flops_profiler_bert_large.txt"
HEADER = "name_nvidia_smi,bf16_tensor_tflops,mem_bw_gbs\n"


def seen(path: Path) -> perfkit.Selection:
    return perfkit.select(perfkit.load(path))


def peaks(folder: Path, *rows: str) -> str:
    path = folder / "peaks.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return str(path)


def training(folder: Path, *, gpus: int, ms: int, batch: int, tflops: float = 0.0) -> None:
    """A log of Megatron on some GPUs, 1024 tokens a sample; the first of five iterations takes three times as long."""
    rate = f" throughput per GPU (TFLOP/s/GPU): {tflops} |" if tflops else ""
    steps = [
        f" iteration {i}/ 5 | elapsed time per iteration (ms): {3 * ms if i == 1 else ms}.0 |{rate} "
        f"global batch size: {batch} | lm loss: 1.0 |"
        for i in range(1, 6)
    ]
    settings = [
        f"using world size: {gpus}, data-parallel-size: {gpus}",
        "  seq_length ............ 1024",
    ]
    text = "\n".join([*settings, *steps, ""])
    (folder / f"train_{gpus:03}.log").write_text(text, encoding="utf-8")


def test_a_benchmark_against_data_sheet_and_line_rate(profiles: Path) -> None:
    """Eight H100 SXM on one node: 989.4 TFLOP/s, 3.35 TB/s, NVLink 900 GB/s in both directions, 450 in one.

    The log's all-reduce at 16 GiB: 482.24 out of place, 482.12 in place, which is the slower: 107 % through the switch.
    """
    figures = diagnosis.figures(seen(profiles / "monitor" / H100))
    found = {id.removeprefix("baseline_"): figure.value for id, figure in figures.items()}
    assert (989.4e12, 3.35e12) == (found["peak_flops_per_s"], found["memory_bytes_per_s"])
    assert (295.34, 482.12) == (
        round(found["ridge"], 2),
        round(found["all_reduce_bytes_per_s"] / 1e9, 2),
    )
    assert found["all_reduce_ratio"] == pytest.approx(482.12 / 450, rel=1e-5)
    assert "in place (the slower)" in figures["baseline_all_reduce_bytes_per_s"].definition
    assert "step_ns" not in found


def test_what_has_no_line_rate(profiles: Path) -> None:
    chosen = seen(profiles / "monitor" / POLARIS)
    limit, asked = (
        diagnosis_machine.line_rate(chosen),
        [r.question for r in diagnosis.refusals(chosen)],
    )
    assert limit.bytes_per_s is None
    assert "8 ranks on nodes of 4 GPUs communicate over a network" in limit.why
    assert "How close do collectives come to the speed of the links?" in asked
    assert not [name for name in values(chosen) if name.endswith("_ratio")]
    assert (
        "the log has no bus bandwidth"
        == diagnosis_machine.line_rate(seen(profiles / "monitor" / NETWORKED)).why
    )
    # The A100-SXM4-40GB of an older driver: NVLink of 600 GB/s both ways, 300 GB/s one way.
    assert 300e9 == diagnosis_machine.line_rate(seen(profiles / "monitor" / OLD_NAME)).bytes_per_s


def test_measured_beside_the_data_sheet(profiles: Path, tmp_path: Path) -> None:
    """718 of 989.4 TFLOP/s are 72.6 %, 2.9 of 3.35 TB/s 86.6 %; operations are held against what was measured.

    Peaks of another GPU do not count for this one; twice the data sheet is refused, and the data sheet stays.
    """
    chosen = seen(profiles / "monitor" / H100)
    own = peaks(tmp_path, "NVIDIA H100 80GB HBM3,718,2900")
    found = diagnosis.figures(chosen, peaks=own)
    assert ["72.6 %", "86.6 %"] == [
        found[f"baseline_{part}_frac"].text for part in ("peak", "memory")
    ]
    assert {"718 TFLOP/s", "2.90 TB/s"} <= set(
        diagnosis_machine.machine(chosen, peaks=own).table["measured"]
    )
    for row, why, most in (
        ("NVIDIA H100 80GB HBM3,718,2900", "", 718e12),
        ("mine,1,1", "the file of peaks lacks NVIDIA H100 80GB HBM3; it has mine", 989.4e12),
        ("NVIDIA H100 80GB HBM3,1979,3350", "measured is 2 of the data sheet's peak", 989.4e12),
    ):
        machine = diagnosis_machine.machine(chosen, peaks=peaks(tmp_path, row))
        assert why in machine.why
        assert machine.operations is not None
        assert most == machine.operations["attainable_flops_per_s"].max()


def test_a_training_by_its_medians(profiles: Path) -> None:
    """SuperBench's five iterations: 74.4949, 75.1824, 75.2496, 75.254, 76.0153 s, the third is the median; 16 GPUs."""
    chosen = seen(profiles / "monitor" / MEGATRON)
    found = diagnosis.figures(chosen)
    assert 75.2496e9 == pytest.approx(found["baseline_step_ns"].value, rel=1e-12)
    assert 16 == found["baseline_gpu_count"].value
    assert 2048 * 2048 / 75.2496 == pytest.approx(found["baseline_tokens_per_s"].value, rel=1e-4)
    assert "149 TFLOP/s" == found["baseline_flops_per_s"].text
    assert "baseline_mfu_frac" not in found
    # Passes, optimizer and iteration in ms, as the log prints them; Megatron prints iterations alone.
    printed = [76.67, 108.02, 0.03409, 184.73 - 76.67 - 108.02 - 0.03409]
    phases = (
        diagnosis_machine.phases(seen(profiles / "monitor" / FLOPS_PROFILER))["median_ns"] / 1e6
    )
    assert pytest.approx(printed, abs=1e-6) == phases.tolist()
    assert diagnosis_machine.phases(chosen).empty


def test_what_is_missing_of_a_training_is_the_peak_of_its_gpu(
    profiles: Path, tmp_path: Path
) -> None:
    chosen = seen(profiles / "monitor" / MEGATRON)
    questions = [r.question for r in diagnosis.refusals(chosen)]
    assert "How much memory does the training use?" in questions
    assert ["What share of the peak does the training use (MFU)?"] == [
        q for q in questions if "MFU" in q
    ]
    own = peaks(tmp_path, "NVIDIA A100-SXM4-80GB,250,1800")
    assert [] == [r for r in diagnosis.refusals(chosen, peaks=own) if "MFU" in r.question]
    assert 149.11 / 312 == pytest.approx(values(chosen, peaks=own)["baseline_mfu_frac"], rel=1e-12)
    several = diagnosis_machine.machine(chosen, peaks=peaks(tmp_path, "a,1,1", "b,1,1"))
    assert "the run does not name its GPU, and you gave no file with its peaks" == several.why


def test_more_than_the_peak_is_a_sentence(profiles: Path, tmp_path: Path) -> None:
    chosen = seen(profiles / "monitor" / FLOPS_PROFILER)
    small = peaks(tmp_path, "small,65,320")
    refused = diagnosis_machine.share(chosen, peaks=small)
    assert refused.table is None
    assert "1.569 of the peak is impossible" in refused.why
    assert {} == told(seen(profiles / "monitor" / FLOPS_PROFILER), peaks=small)
    larger = peaks(tmp_path, "larger,125,900")
    doubted = diagnosis.figures(chosen, peaks=larger)["baseline_mfu_frac"]
    in_passes = (76.67 + 108.02) / 184.73  # the rest of the iteration is the optimizer's
    assert 102 / 125 * in_passes == pytest.approx(doubted.value, rel=1e-12)
    assert "above 70 % of the peak" in doubted.doubt
    assert "(doubtful)" in doubted.marked
    assert {} == told(chosen, peaks=larger)


def test_scaling_over_logs_of_several_sizes(tmp_path: Path) -> None:
    training(tmp_path, gpus=8, ms=1000, batch=64)
    training(tmp_path, gpus=16, ms=1250, batch=128)
    chosen = seen(tmp_path)
    runs, work = diagnosis_machine.scaling(chosen)
    assert ("tokens", [8, 16]) == (work, runs["gpus"].tolist())
    assert [64 * 1024, 102.4 * 1024] == pytest.approx(runs["throughput_per_s"].tolist(), rel=1e-12)
    assert [1.0, 0.8] == pytest.approx(runs["efficiency_frac"].tolist(), rel=1e-12)
    found = values(chosen)
    assert [1000e6, 1250e6] == [found[f"baseline_step_ns_{rank}"] for rank in (0, 1)]


def test_memory_of_a_log_beside_the_training(tmp_path: Path) -> None:
    training(tmp_path, gpus=8, ms=1000, batch=64, tflops=124.8)
    lines = ["timestamp, index, name, memory.used [MiB], memory.total [MiB]"]
    lines += [
        f"2026/01/01 00:00:0{s}.000, 0, NVIDIA A100-SXM4-80GB, {70 + s} MiB, 81920 MiB"
        for s in range(3)
    ]
    (tmp_path / "gpus.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    chosen = seen(tmp_path)
    found = values(chosen)
    assert 72 * 2**20 == found["baseline_memory_bytes"]
    assert 0.4 == pytest.approx(found["baseline_mfu_frac"], rel=1e-12)
    assert "How much memory does the training use?" not in [
        r.question for r in diagnosis.refusals(chosen)
    ]


def test_another_run_has_no_baseline(tmp_path: Path) -> None:
    chosen = seen(sample())
    assert not [name for name in diagnosis.figures(chosen) if name.startswith("baseline_")]
    assert diagnosis_machine.trainings(chosen).empty
    assert diagnosis_machine.scaling(chosen)[0].empty
    with pytest.raises(ReadError, match=r"absent\.csv"):
        diagnosis_machine.machine(chosen, peaks=str(tmp_path / "absent.csv"))


def all_reduce(folder: Path, *rates: float, ranks: int = 8) -> Path:
    """A log of H100 SXM, eight a node: messages of 2, 4, 8 ... GiB at these bus bandwidths, GB/s; 0 leaves one out."""
    rows, factor = [], 2 * (ranks - 1) / ranks
    for size, rate in ((2**31 << i, rate) for i, rate in enumerate(rates) if rate):
        cells = (f"{factor * size / rate / 1e3:.1f}", f"{rate / factor:.2f}", f"{rate:.2f}", 0)
        rows.append(nccl_files.start(size, size // 4) + 2 * nccl_files.half(cells))
    return nccl_files.written(folder / "all_reduce.log", nccl_files.table(inner=rows, ranks=ranks))


def test_published_logs_reach_what_links_carry(profiles: Path) -> None:
    """Eight H100 and eight A100 whose operations reach 0.75 to 1.07 of NVLink's line rate: nothing is found."""
    bridge = "Timez-zx__nccl-tests__nccl.log"  # NVLink joins two A100 PCIe: 216.6 of 300 GB/s
    for name in (
        H100,
        OLD_NAME,
        "superbench__nccl_allreduce.log",
        "superbench__nccl_alltoall.log",
        bridge,
    ):
        assert "bus_bandwidth" not in told(seen(profiles / "monitor" / name))
    slow = told(seen(profiles / "monitor" / "Timez-zx__nccl-tests__nccl-fault.log"))[
        "bus_bandwidth"
    ]
    assert 28.55 / 300 == pytest.approx(slow.evidence[0].value, abs=0.0005)
    assert not [step for step in slow.advice["immediate"] if "NCCL_DEBUG" in step], (
        "the log holds the transports"
    )


@pytest.mark.parametrize(
    ("rate", "severity"),
    [
        (400.0, ""),
        (280.0, ""),
        (260.0, "medium"),
        (190.0, "medium"),
        (170.0, "high"),
        (40.0, "high"),
    ],
)
def test_links_below_six_tenths_of_the_line_rate(
    tmp_path: Path, rate: float, severity: str
) -> None:
    """Of 450 GB/s: 270 GB/s are 0.6 and 180 GB/s 0.4, here on a flat curve, which leaves no doubt."""
    found = told(seen(all_reduce(tmp_path, rate, rate, rate))).get("bus_bandwidth")
    assert severity == (found.severity if found else "")
    if found:
        assert ("high", ()) == (found.confidence, found.against)
        assert [rate / 450, rate * 1e9] == pytest.approx(
            [figure.value for figure in found.evidence], rel=1e-3
        )


def test_a_curve_that_still_grows_is_doubted_and_one_that_falls_is_told(tmp_path: Path) -> None:
    """100, 150, 200 GB/s: messages of 8 GiB may be too small; a single size says even less.

    Sixteen ranks on two nodes, whose line rate nobody knows: 40 GB/s of 100 GB/s that smaller messages reach.
    """
    for rates, doubt in (
        ((100, 150, 200), "the bandwidth still grows by 33.3 %"),
        ((200,), "one message size"),
    ):
        found = told(seen(all_reduce(tmp_path, *rates)))["bus_bandwidth"]
        assert ("medium", True) == (found.confidence, doubt in found.against[0])
    fell = told(seen(all_reduce(tmp_path, 90.0, 100.0, 40.0, 40.0, ranks=16)))["bus_bandwidth"]
    assert "40.0 % of the best in the same log" in fell.title
    assert [0.4, 40e9] == pytest.approx([figure.value for figure in fell.evidence], rel=1e-3)
    assert "bus_bandwidth" not in told(seen(all_reduce(tmp_path, 0, 0, 40.0, 40.0, ranks=16)))


def connected(folder: Path, *transports: str, path: str = "PIX") -> Path:
    """A log of NCCL in which rank 0 sends to rank 1 over a channel for each of these transports."""
    pattern = f"Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/{path}, sameChannels 1"
    lines = [f"Channel 0{i}/0 : 0[0] -> 1[0] [send] via {via}" for i, via in enumerate(transports)]
    return nccl_files.written(folder / "nccl.log", map(nccl_files.said, [pattern, *lines]))


@pytest.mark.parametrize(("nodes", "expected"), [(1, {"network_inside"}), (2, {"network_tcp"})])
def test_the_network_inside_a_node_is_no_missing_infiniband(
    nodes: int, expected: set[str], tmp_path: Path
) -> None:
    connection = nccl_files.said("Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0")
    lines = [*nccl_files.init(0, 2, nodes), connection]
    log = nccl_files.written(tmp_path / "nccl.log", lines)
    found = set(told(perfkit.select(perfkit.load(log))))
    assert expected == found & {"network_inside", "network_tcp", "network_by_host"}


def test_tcp_and_host_memory_between_nodes_are_told(tmp_path: Path) -> None:
    direct = (
        "NET/IB/0/GDRDMA",
        "NET/IB/0/GDRDMA(PCI)",
        "NET/IB/0(2)/GDRDMA/Shared",
        "NET/IB/0/GDRDMA/flush=Always",
    )
    log = connected(
        tmp_path,
        "NET/Socket/1",
        "NET/FastSocket/0",
        "NET/IB/0",
        "NET/IB/1/Shared",
        *direct,
        "P2P/CUMEM",
    )
    found = told(seen(log))
    assert {"network_tcp": 0.25, "network_by_host": 0.25} == {
        rule: f.evidence[0].value for rule, f in found.items()
    }
    assert ("high", "medium") == (found["network_tcp"].severity, found["network_tcp"].confidence)
    assert "25.0 %" in found["network_tcp"].title
    for path, tried in (
        ("SYS", True),
        ("PIX", False),
    ):  # behind one switch a higher level would change nothing
        steps = told(seen(connected(tmp_path, "NET/IB/0", path=path)))["network_by_host"].advice[
            "immediate"
        ]
        assert tried == ("Try a higher NCCL_NET_GDR_LEVEL" in " ".join(steps))


DIRECT = ["nccl_debug_info_h100_issue1453.txt", "nccl_debug_info_h20_issue1189.txt", NETWORKED]
DIRECT += ["nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log"]
DIRECT += ["KeitaW__p5-nccl-test__nccl-test-output-v2.22.3-1.log"]


@pytest.mark.parametrize("name", DIRECT)
def test_networks_with_gpudirect_are_not_told(profiles: Path, name: str) -> None:
    """By grep every whole line " via NET/" of these logs says GDRDMA, and each log has such lines."""
    assert not {"network_tcp", "network_by_host"} & set(told(seen(profiles / "monitor" / name)))


@pytest.mark.parametrize(
    ("tflops", "severity"),
    [(312, ""), (420, ""), (430, "medium"), (740, "medium"), (750, "high"), (215, "")],
)
def test_share_of_the_peak(profiles: Path, tmp_path: Path, tflops: float, severity: str) -> None:
    """149.11 TFLOP/s of a GPU: 0.35 of 426, 0.2 of 745.6; at most what separates it from 0.55 is gained."""
    own = peaks(tmp_path, f"mine,{tflops},2000")
    found = told(seen(profiles / "monitor" / MEGATRON), peaks=own).get("training_mfu")
    assert severity == (found.severity if found else "")
    if found:
        assert "medium" == found.confidence, "the log does not say the precision"
        assert 149.11 / tflops == pytest.approx(found.evidence[0].value, rel=1e-12)
        assert 0.55 * tflops / 149.11 == pytest.approx(found.gain.high)


def test_a_training_that_waits_for_its_optimizer(profiles: Path, tmp_path: Path) -> None:
    """3 x 82543.9 GFLOP in 41.39 s are 5.983 TFLOP/s, 1.92 % of 312; in the 7.27 s of the two passes alone 10.9 %.

    The log prints 34.12 s of an iteration of 41.39 s; that of BERT has 34.09 us of 184.73 ms, which is nothing.
    """
    found = told(
        seen(profiles / "monitor" / SLOW_OPTIMIZER), peaks=peaks(tmp_path, "mine,312,2000")
    )
    assert 3 * 82.5439 / 41.39 / 312 == pytest.approx(
        found["training_mfu"].evidence[0].value, rel=1e-3
    )
    assert "high" == found["training_mfu"].severity
    step = found["training_optimizer"]
    assert [34.12 / 41.39, 34.12e9] == pytest.approx([figure.value for figure in step.evidence])
    assert ("high", pytest.approx(41.39 / 7.27)) == (step.severity, step.gain.high)
    assert "fused" in step.advice["immediate"][0]
    assert "training_optimizer" not in told(seen(profiles / "monitor" / FLOPS_PROFILER))


REPORTS = Path("reports")
FOUR_GPUS = "deepspeed_flops_profiler__OAfzal_LLaVA_4gpu.txt"
EXCERPT = "nccl_debug_info_h100_issue1453.txt"


def first_screen(path: Path) -> headline.Headline:
    chosen = seen(path)
    return headline.headline(chosen, diagnosis.figures(chosen), diagnosis.findings(chosen))


def tile(path: Path, label: str) -> Tile:
    return next(tile for tile in first_screen(path).tiles if tile.label == label)


def test_the_rate_of_a_real_report_of_deepspeed_is_that_of_the_iteration(profiles: Path) -> None:
    """The report prints 50.67 TFLOP/s over the iteration and 65.89 over forward and backward pass."""
    found = diagnosis.figures(seen(profiles / "monitor" / FOUR_GPUS))
    assert 50.67e12 == pytest.approx(found["baseline_iteration_flops_per_s"].value, rel=1e-3)
    assert 65.89e12 == found["baseline_flops_per_s"].value


def test_the_first_screen_names_which_rate_of_deepspeed_it_shows(profiles: Path) -> None:
    shown = tile(profiles / "monitor" / FOUR_GPUS, "Arithmetic of a GPU")
    assert ("50.7 TFLOP/s", "over the iteration, 65.9 TFLOP/s in both passes") == (
        shown.value,
        shown.note,
    )


def test_the_rate_of_megatron_is_that_of_the_log(profiles: Path) -> None:
    found = diagnosis.figures(seen(profiles / "monitor" / MEGATRON))
    assert "baseline_iteration_flops_per_s" not in found


def test_the_memory_of_a_real_log_of_primus_is_no_open_question(profiles: Path) -> None:
    chosen = seen(profiles / REPORTS / "primus_log" / "primus_log_plain.txt")
    assert "How much memory does the training use?" not in [
        r.question for r in diagnosis.refusals(chosen)
    ]


def test_the_first_screen_shows_the_memory_of_a_real_log_of_primus(profiles: Path) -> None:
    shown = tile(profiles / REPORTS / "primus_log" / "primus_log_plain.txt", "Memory used")
    assert ("154 GB", "of 256 GB") == (shown.value, shown.note)


def test_a_real_log_of_primus_tells_the_tokens_of_a_gpu(profiles: Path) -> None:
    found = diagnosis.figures(seen(profiles / REPORTS / "primus_log" / "primus_log_plain.txt"))
    assert 10_005 == pytest.approx(found["baseline_tokens_per_gpu_per_s"].value, rel=1e-3)


def test_an_excerpt_of_nccl_names_at_least_as_many_ranks_as_its_largest(profiles: Path) -> None:
    """Its four connections are of rank 0 to ranks 7 and 15."""
    assert (
        "NCCL connected at least 16 ranks" in first_screen(profiles / "monitor" / EXCERPT).verdict
    )


def test_a_real_switch_may_exceed_the_line_rate(profiles: Path) -> None:
    """NVLS reduces in the switch: 480 of 450 GB/s."""
    found = values(seen(profiles / REPORTS / "nccl_nvls_above_line_rate" / "nccl.txt"))
    assert found["baseline_all_reduce_ratio"] == pytest.approx(1.067, rel=1e-3)
    assert 480e9 == pytest.approx(found["baseline_all_reduce_bytes_per_s"], rel=2e-3)


def test_a_real_log_with_ranks_inside_rows_reaches_its_best_rate(profiles: Path) -> None:
    found = first_screen(profiles / REPORTS / "nccl_tests_rank_prefix" / "nccl.txt")
    assert "482 GB/s" in found.verdict
