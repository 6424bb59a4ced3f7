"""Rules of step 1: links that are slower than they should be, and trainings that use little of the peak."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from readers import nccl_files

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import Finding

PUBLISHED = (
    "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log",
    "superbench__nccl_allreduce.log",
    "superbench__nccl_alltoall.log",
    "superbench__nccl_broadcast.log",
)
MEGATRON = "superbench__megatron_deepspeed.log"
SLOW_OPTIMIZER = "deepspeed_flops_profiler_megatron_gpt.txt"
FLOPS_PROFILER = "deepspeed_flops_profiler_bert_large.txt"


def told(path: Path, peaks: str = "") -> dict[str, Finding]:
    """The findings of a file, by their rule."""
    return {finding.rule: finding for finding in diagnosis.findings(perfkit.load(path), peaks=peaks)}


def peaks(folder: Path, tflops: float) -> str:
    """A file that holds the 16-bit tensor peak of one GPU."""
    path = folder / "peaks.csv"
    path.write_text(f"name_nvidia_smi,bf16_tensor_tflops,mem_bw_gbs\nmine,{tflops},2000\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "parts"), [(FLOPS_PROFILER, [76.67, 108.02, 0.03409, 184.73 - 76.67 - 108.02 - 0.03409]), (MEGATRON, [])]
)
def test_phases_are_those_that_the_log_prints(profiles: Path, name: str, parts: list[float]) -> None:
    """Passes, optimizer and iteration in ms, read in the file; Megatron prints iterations alone."""
    found = diagnosis.machine.phases(perfkit.select(perfkit.load(profiles / "monitor" / name)))
    assert pytest.approx(parts, abs=1e-6) == (found["median_ns"] / 1e6).tolist()


def all_reduce(folder: Path, *rates: float) -> Path:
    """A log of eight H100 SXM on one node: messages of 2, 4, 8 ... GiB at these bus bandwidths, GB/s."""
    rows = []
    for i, rate in enumerate(rates):
        size = 2**31 << i
        cells = (f"{1.75 * size / rate / 1e3:.1f}", f"{rate / 1.75:.2f}", f"{rate:.2f}", 0)
        rows.append(nccl_files.start(size, size // 4) + 2 * nccl_files.half(cells))
    return nccl_files.written(folder / "all_reduce.log", nccl_files.table(inner=rows))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_logs_reach_what_links_carry(profiles: Path, name: str) -> None:
    """Eight H100 and eight A100 whose operations reach 0.75 to 1.07 of NVLink's line rate: nothing is found."""
    assert "bus_bandwidth" not in told(profiles / "monitor" / name)


@pytest.mark.parametrize(
    ("rate", "severity"),
    [(400.0, ""), (280.0, ""), (260.0, "medium"), (190.0, "medium"), (170.0, "high"), (40.0, "high")],
)
def test_links_below_six_tenths_of_the_line_rate(tmp_path: Path, rate: float, severity: str) -> None:
    """Of 450 GB/s: 270 GB/s are 0.6 and 180 GB/s 0.4, here on a flat curve, which leaves no doubt."""
    found = told(all_reduce(tmp_path, rate, rate, rate)).get("bus_bandwidth")
    assert severity == (found.severity if found else "")
    if found:
        assert ("high", ()) == (found.confidence, found.against)
        assert [rate / 450, rate * 1e9] == pytest.approx([figure.value for figure in found.evidence], rel=1e-3)


def test_a_curve_that_still_grows_is_doubted(tmp_path: Path) -> None:
    """100, 150, 200 GB/s: messages of 8 GiB may be too small; a single size says even less."""
    growing = told(all_reduce(tmp_path, 100, 150, 200))["bus_bandwidth"]
    assert ("medium", ("the bandwidth still grows by 33.3 % up to the largest messages",)) == (
        growing.confidence,
        growing.against,
    )
    single = told(all_reduce(tmp_path, 200))["bus_bandwidth"]
    assert "medium" == single.confidence
    assert "one message size" in single.against[0]


def test_an_nvlink_bridge_has_a_line_rate(profiles: Path) -> None:
    """Two A100 PCIe that NVLink joins: 28.55 of 300 GB/s are told, 216.6 GB/s are not.

    Half of the data sheet's 600 GB/s in both directions; the last row of the log says 28.55 and 28.60 GB/s.
    """
    slow = told(profiles / "monitor" / "Timez-zx__nccl-tests__nccl-fault.log")["bus_bandwidth"]
    ratio, rate = (figure.value for figure in slow.evidence)
    assert 28.55 == pytest.approx(rate / 1e9, abs=0.05)
    assert 28.55 / 300 == pytest.approx(ratio, abs=0.0005)
    assert ("high", "high") == (slow.severity, slow.confidence)
    assert not [step for step in slow.advice["immediate"] if "NCCL_DEBUG" in step], "the log holds the transports"
    assert not told(profiles / "monitor" / "Timez-zx__nccl-tests__nccl.log")


def test_a_fall_at_the_largest_messages_is_told(tmp_path: Path) -> None:
    """Sixteen ranks on two nodes, whose line rate nobody knows: 40 GB/s of 100 GB/s that smaller messages reach."""
    rows = []
    for i, rate in enumerate((90.0, 100.0, 40.0, 40.0)):
        size = 2**31 << i
        cells = (f"{1.875 * size / rate / 1e3:.1f}", f"{rate / 1.875:.2f}", f"{rate:.2f}", 0)
        rows.append(nccl_files.start(size, size // 4) + 2 * nccl_files.half(cells))
    fell = told(nccl_files.written(tmp_path / "fell.log", nccl_files.table(inner=rows, ranks=16)))["bus_bandwidth"]
    assert "40.0 % of the best in the same log" in fell.title
    assert [0.4, 40e9] == pytest.approx([figure.value for figure in fell.evidence], rel=1e-3)
    flat = [row for row in rows if row is not rows[1] and row is not rows[0]]
    assert "bus_bandwidth" not in told(nccl_files.written(tmp_path / "f.log", nccl_files.table(inner=flat, ranks=16)))


def connected(folder: Path, *transports: str, path: str = "PIX") -> Path:
    """A log of NCCL in which rank 0 sends to rank 1 over a channel for each of these transports."""
    pattern = f"Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/{path}, sameChannels 1"
    lines = [f"Channel 0{i}/0 : 0[0] -> 1[0] [send] via {via}" for i, via in enumerate(transports)]
    return nccl_files.written(folder / "nccl.log", map(nccl_files.said, [pattern, *lines]))


def test_tcp_and_host_memory_between_nodes_are_told(tmp_path: Path) -> None:
    """Of eight connections two are TCP, two others lack GPUDirect RDMA; peer to peer is no network."""
    direct = ("NET/IB/0/GDRDMA", "NET/IB/0/GDRDMA(PCI)", "NET/IB/0(2)/GDRDMA/Shared", "NET/IB/0/GDRDMA/flush=Always")
    log = connected(tmp_path, "NET/Socket/1", "NET/FastSocket/0", "NET/IB/0", "NET/IB/1/Shared", *direct, "P2P/CUMEM")
    found = told(log)
    assert {"network_tcp": 0.25, "network_by_host": 0.25} == {rule: f.evidence[0].value for rule, f in found.items()}
    assert ("high", "medium") == (found["network_tcp"].severity, found["network_tcp"].confidence)
    assert "25.0 %" in found["network_tcp"].title


def test_advice_on_gpudirect_asks_where_the_card_is(tmp_path: Path) -> None:
    """Behind the processor the level is raised for a try; behind one switch that would change nothing."""
    steps = {
        path: " ".join(told(connected(tmp_path, "NET/IB/0", path=path))["network_by_host"].advice["immediate"])
        for path in ("SYS", "PIX")
    }
    assert ("Try a higher NCCL_NET_GDR_LEVEL" in steps["SYS"], "Try a higher NCCL_NET_GDR_LEVEL" in steps["PIX"]) == (
        True,
        False,
    )


@pytest.mark.parametrize(
    "name",
    [
        "nccl_debug_info_h100_issue1453.txt",
        "nccl_debug_info_h20_issue1189.txt",
        "nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log",
        "nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log",
        "KeitaW__p5-nccl-test__nccl-test-output-v2.22.3-1.log",
    ],
)
def test_networks_with_gpudirect_are_not_told(profiles: Path, name: str) -> None:
    """Each line over the network says GDRDMA, and none Socket: no finding."""
    path = profiles / "monitor" / name
    over = [line for line in path.read_text(errors="replace").splitlines() if " via NET/" in line]
    assert over
    assert not [line for line in over if "GDRDMA" not in line and len(re.findall("NCCL INFO", line)) == 1]
    assert not {"network_tcp", "network_by_host"} & set(told(path))


@pytest.mark.parametrize(
    ("tflops", "severity"), [(312, ""), (420, ""), (430, "medium"), (740, "medium"), (750, "high"), (215, "")]
)
def test_share_of_the_peak(profiles: Path, tmp_path: Path, tflops: float, severity: str) -> None:
    """149.11 TFLOP/s of a GPU: 0.35 of 426, 0.2 of 745.6; at most what separates it from 0.55 is gained."""
    found = told(profiles / "monitor" / MEGATRON, peaks(tmp_path, tflops)).get("training_mfu")
    assert severity == (found.severity if found else "")
    if found:
        assert "medium" == found.confidence, "the log does not say the precision"
        assert 149.11 / tflops == pytest.approx(found.evidence[0].value, rel=1e-12)
        assert 0.55 * tflops / 149.11 == pytest.approx(found.gain.high)


def test_a_share_that_nobody_reached_is_doubted(profiles: Path, tmp_path: Path) -> None:
    """102 of 125 TFLOP/s are 82 %: the figure is in doubt and nothing is gained; of 65 the share is refused."""
    found = told(profiles / "monitor" / FLOPS_PROFILER, peaks(tmp_path, 125))
    assert ["training_mfu_suspicious"] == list(found)
    assert ("low", 1.0) == (found["training_mfu_suspicious"].severity, found["training_mfu_suspicious"].gain.high)
    assert {} == told(profiles / "monitor" / FLOPS_PROFILER, peaks(tmp_path, 65))


def test_the_share_of_the_peak_is_that_of_the_iteration(profiles: Path, tmp_path: Path) -> None:
    """3 x 82543.9 GFLOP in 41.39 s are 5.983 TFLOP/s, 1.92 % of 312; in the 7.27 s of the two passes alone 10.9 %."""
    found = told(profiles / "monitor" / SLOW_OPTIMIZER, peaks(tmp_path, 312))
    assert 3 * 82.5439 / 41.39 / 312 == pytest.approx(found["training_mfu"].evidence[0].value, rel=1e-3)
    assert "high" == found["training_mfu"].severity


def test_the_step_of_the_optimizer(profiles: Path) -> None:
    """The log prints 34.12 s of an iteration of 41.39 s; that of BERT has 34.09 us of 184.73 ms, which is nothing."""
    found = told(profiles / "monitor" / SLOW_OPTIMIZER)["training_optimizer"]
    assert [34.12 / 41.39, 34.12e9] == pytest.approx([figure.value for figure in found.evidence])
    assert ("high", pytest.approx(41.39 / 7.27)) == (found.severity, found.gain.high)
    assert "fused" in found.advice["immediate"][0]
    assert "training_optimizer" not in told(profiles / "monitor" / FLOPS_PROFILER)
