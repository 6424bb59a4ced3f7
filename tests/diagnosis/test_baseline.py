"""Figures of step 1: ceilings, bus bandwidth, training."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import machine as diagnosis_machine
from perfkit.errors import ReadError
from perfkit.report.notebooks import sample

H100 = "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log"
POLARIS = "nccl_tests__alcf_polaris_nccl_2_18_n2.g4.2024-04-29-18-41-24_all_reduce_output.dat.1.txt"
OLD_NAME = "superbench__nccl_broadcast.log"
NETWORKED = "nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log"
MEGATRON = "superbench__megatron_deepspeed.log"
FLOPS_PROFILER = "deepspeed_flops_profiler_bert_large.txt"
HEADER = "name_nvidia_smi,bf16_tensor_tflops,mem_bw_gbs\n"


def seen(path: Path) -> perfkit.Selection:
    """A selection of everything."""
    return perfkit.select(perfkit.load(path))


def peaks(folder: Path, *rows: str) -> str:
    """A file of peaks with these rows."""
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
    settings = [f"using world size: {gpus}, data-parallel-size: {gpus}", "  seq_length ............ 1024"]
    text = "\n".join([*settings, *steps, ""])
    (folder / f"train_{gpus:03}.log").write_text(text, encoding="utf-8")


def test_a_benchmark_against_data_sheet_and_line_rate(profiles: Path) -> None:
    """Eight H100 SXM on one node: 989.4 TFLOP/s, 3.35 TB/s, NVLink 900 GB/s in both directions, 450 in one.

    The log's all-reduce at 16 GiB: 482.24 out of place, 482.12 in place, which is the slower: 107 % through the switch.
    """
    found = diagnosis.figures(seen(profiles / "monitor" / H100))
    assert 989.4e12 == found["baseline_peak_flops_per_s"].value
    assert 3.35e12 == found["baseline_memory_bytes_per_s"].value
    assert 295.34 == round(found["baseline_ridge"].value, 2)
    assert 482.12 == round(found["baseline_all_reduce_bytes_per_s"].value / 1e9, 2)
    assert found["baseline_all_reduce_ratio"].value == pytest.approx(482.12 / 450, rel=1e-5)
    assert "in place (the slower)" in found["baseline_all_reduce_bytes_per_s"].definition
    assert "baseline_step_ns" not in found


def test_a_network_has_no_line_rate(profiles: Path) -> None:
    """Two nodes of four A100: the log has no speed of the network, and NVLink is not what limits."""
    view = seen(profiles / "monitor" / POLARIS)
    limit = diagnosis_machine.line_rate(view)
    assert limit.bytes_per_s is None
    assert "8 ranks on nodes of 4 GPUs communicate over a network" in limit.why
    assert "How close do collectives come to the speed of the links?" in [r.question for r in diagnosis.refusals(view)]
    assert not [name for name in diagnosis.figures(view) if name.endswith("_ratio")]


def test_what_has_no_bandwidth_has_no_line_rate(profiles: Path) -> None:
    """NCCL's own log times nothing."""
    assert "the log has no bus bandwidth" == diagnosis_machine.line_rate(seen(profiles / "monitor" / NETWORKED)).why


def test_names_of_older_drivers_have_a_line_rate(profiles: Path) -> None:
    """A100-SXM4-40GB has NVLink of 600 GB/s both ways: 300 GB/s one way."""
    assert 300e9 == diagnosis_machine.line_rate(seen(profiles / "monitor" / OLD_NAME)).bytes_per_s


def test_measured_beside_the_data_sheet(profiles: Path, tmp_path: Path) -> None:
    """718 of 989.4 TFLOP/s are 72.6 %, 2.9 of 3.35 TB/s 86.6 %; operations are held against what was measured."""
    own = peaks(tmp_path, "NVIDIA H100 80GB HBM3,718,2900")
    view = seen(profiles / "monitor" / H100)
    found = diagnosis.figures(view, peaks=own)
    assert ["72.6 %", "86.6 %"] == [found[f"baseline_{part}_frac"].text for part in ("peak", "memory")]
    machine = diagnosis_machine.machine(view, peaks=own)
    assert machine.operations is not None
    assert 718e12 == machine.operations["attainable_flops_per_s"].max()
    assert {"718 TFLOP/s", "2.90 TB/s"} <= set(machine.table["measured"])


def test_what_is_said_of_other_peaks(profiles: Path, tmp_path: Path) -> None:
    """Peaks of another GPU do not count for this one; twice the data sheet is refused, and the data sheet stays."""
    view = seen(profiles / "monitor" / H100)
    other = diagnosis_machine.machine(view, peaks=peaks(tmp_path, "mine,1,1"))
    assert "the file of peaks lacks NVIDIA H100 80GB HBM3; it has mine" == other.why
    sparse = diagnosis_machine.machine(view, peaks=peaks(tmp_path, "NVIDIA H100 80GB HBM3,1979,3350"))
    assert "measured is 2 of the data sheet's peak" in sparse.why
    for machine in (other, sparse):
        assert machine.operations is not None
        assert 989.4e12 == machine.operations["attainable_flops_per_s"].max()


def test_a_training_by_its_medians(profiles: Path) -> None:
    """SuperBench's five iterations: 74.4949, 75.1824, 75.2496, 75.254, 76.0153 s, the third is the median; 16 GPUs."""
    view = seen(profiles / "monitor" / MEGATRON)
    found = diagnosis.figures(view)
    assert 75.2496e9 == pytest.approx(found["baseline_step_ns"].value, rel=1e-12)
    assert 16 == found["baseline_gpu_count"].value
    assert 2048 * 2048 / 75.2496 == pytest.approx(found["baseline_tokens_per_s"].value, rel=1e-4)
    assert "149 TFLOP/s" == found["baseline_flops_per_s"].text
    assert "baseline_mfu_frac" not in found


def test_share_of_the_peak_of_a_gpu_that_is_given(profiles: Path, tmp_path: Path) -> None:
    """149.11 of 312 TFLOP/s are 47.8 %; a log without the GPU's name is held against the only one in the file."""
    view = seen(profiles / "monitor" / MEGATRON)
    own = peaks(tmp_path, "NVIDIA A100-SXM4-80GB,250,1800")
    assert 149.11 / 312 == pytest.approx(diagnosis.figures(view, peaks=own)["baseline_mfu_frac"].value, rel=1e-12)
    several = diagnosis_machine.machine(view, peaks=peaks(tmp_path, "a,1,1", "b,1,1"))
    assert "the run does not name its GPU, and you gave no file with its peaks" == several.why


def test_more_than_the_peak_is_a_sentence(profiles: Path, tmp_path: Path) -> None:
    """102 TFLOP/s of a GPU of 65 are refused with their causes, of one of 125 told with a doubt."""
    view = seen(profiles / "monitor" / FLOPS_PROFILER)
    refused = diagnosis_machine.share(view, peaks=peaks(tmp_path, "small,65,320"))
    assert refused.table is None
    assert "1.569 of the peak is impossible" in refused.why
    doubted = diagnosis.figures(view, peaks=peaks(tmp_path, "larger,125,900"))["baseline_mfu_frac"]
    in_passes = (76.67 + 108.02) / 184.73  # the rest of the iteration is the optimizer's
    assert 102 / 125 * in_passes == pytest.approx(doubted.value, rel=1e-12)
    assert "above 70 % of the peak" in doubted.definition


def test_refusals_say_what_to_record(profiles: Path, tmp_path: Path) -> None:
    """A log of a training counts its operations: what is missing is the GPU's peak, and it goes once that is given."""
    view = seen(profiles / "monitor" / MEGATRON)
    questions = [r.question for r in diagnosis.refusals(view)]
    assert "How much memory does the training use?" in questions
    assert ["What share of the peak does the training use (MFU)?"] == [q for q in questions if "MFU" in q]
    given = diagnosis.refusals(view, peaks=peaks(tmp_path, "NVIDIA A100-SXM4-80GB,250,1800"))
    assert [] == [r for r in given if "MFU" in r.question]


def test_scaling_over_logs_of_several_sizes(tmp_path: Path) -> None:
    """8 GPUs 64 samples/s, 16 GPUs 128 in 1.25 s: 102.4, 80 % of twice as many; tokens are 1024 a sample."""
    training(tmp_path, gpus=8, ms=1000, batch=64)
    training(tmp_path, gpus=16, ms=1250, batch=128)
    view = seen(tmp_path)
    runs, work = diagnosis_machine.scaling(view)
    assert ("tokens", [8, 16]) == (work, runs["gpus"].tolist())
    assert [64 * 1024, 102.4 * 1024] == pytest.approx(runs["throughput_per_s"].tolist(), rel=1e-12)
    assert [1.0, 0.8] == pytest.approx(runs["efficiency_frac"].tolist(), rel=1e-12)
    found = diagnosis.figures(view)
    assert [1000e6, 1250e6] == [found[f"baseline_step_ns_{rank}"].value for rank in (0, 1)]


def test_memory_of_a_log_beside_the_training(tmp_path: Path) -> None:
    """72 of 80 GiB in a log of nvidia-smi in the same folder, which names the GPU too: MFU is 40 % of 312."""
    training(tmp_path, gpus=8, ms=1000, batch=64, tflops=124.8)
    lines = ["timestamp, index, name, memory.used [MiB], memory.total [MiB]"]
    lines += [f"2026/01/01 00:00:0{s}.000, 0, NVIDIA A100-SXM4-80GB, {70 + s} MiB, 81920 MiB" for s in range(3)]
    (tmp_path / "gpus.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    view = seen(tmp_path)
    found = diagnosis.figures(view)
    assert 72 * 2**20 == found["baseline_memory_bytes"].value
    assert 0.4 == pytest.approx(found["baseline_mfu_frac"].value, rel=1e-12)
    assert "How much memory does the training use?" not in [r.question for r in diagnosis.refusals(view)]


def test_another_run_has_no_baseline(tmp_path: Path) -> None:
    """The sample run is no benchmark and no log of a training; a file of peaks that is none is an error."""
    view = seen(sample())
    assert not [name for name in diagnosis.figures(view) if name.startswith("baseline_")]
    assert diagnosis_machine.trainings(view).empty
    assert diagnosis_machine.scaling(view)[0].empty
    with pytest.raises(ReadError, match=r"absent\.csv"):
        diagnosis_machine.machine(view, peaks=str(tmp_path / "absent.csv"))
