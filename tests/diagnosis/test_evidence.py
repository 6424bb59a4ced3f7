"""Advice is left out where the recording disproves it, and commands name what this run shows."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from diagnosis.test_diagnosis import _view
from frames import copies, kernels

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import evidence
from perfkit.diagnosis.rules import Step, rules
from perfkit.diagnosis.warming import FIRST_PASS

# Capture, finding, what its advice must not say, and the fact of the recording that disproves it.
BERT = "leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_torch_nsight.csv"
TIMESFORMER = "torch/TraceLens__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz"
TWO_H100 = "nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite"
PIN, MIX = r"[Pp]inned|cudaHostAlloc|pin_memory|Merge small", r"autocast|mixed precision|TF32"
DISPROVED = {
    "ncu/AlpriElse__cs599k__rms-norm-pytorch.ncu-rep": ("compute_bound", r"\{ncu\}|ncu --set", "counters"),
    "ncu/flyinglandlord__sglang__profile.ncu-rep": ("compute_bound", r"\{ncu\}|ncu --set", "counters"),
    f"ncu/{BERT}": (
        "latency_bound",
        r"__launch_bounds__|maxrregcount|#pragma|__shared__|128 or 256",
        "library_kernels",
    ),
    "ncu/MgMap__Hyper-Spec-M__profile.ncu-rep": ("latency_bound", r"Launch enough blocks|Raise occupancy", "full_grid"),
    "ncu/amitadate__GPU_Power_Model__PS1_10_profile.ncu-rep": ("latency_bound", r"Launch enough blocks", "full_grid"),
    TIMESFORMER: ("computation", MIX, "reduced"),
    TWO_H100: ("copies_bound", PIN, "pinned"),
    "nsys/PolPuigPuy__OpenACC_Project_PolPuig__report3.sqlite": ("synchronisation", PIN, "pinned"),
}
MS = 1_000_000


def _steps(view: perfkit.Selection) -> dict[str, str]:
    return {f.rule: "; ".join(s for texts in f.advice.values() for s in texts) for f in diagnosis.findings(view)}


@pytest.mark.parametrize("capture", DISPROVED)
def test_advice_that_the_recording_disproves_is_left_out(capture: str, profiles: Path) -> None:
    """The fact holds by the raw tables, and nothing that it disproves is said of any finding."""
    rule, banned, fact = DISPROVED[capture]
    view = perfkit.select(perfkit.load(profiles / capture))
    assert evidence.holds(view, fact=fact)
    said = _steps(view)
    assert rule in said
    assert [] == [step for step in said.values() if re.search(banned, step)]


SPILLING, LATENT = "ncu/eschnett__IndexSpaces.jl__profile.ncu-rep", "ncu/MgMap__Hyper-Spec-M__profile.ncu-rep"


@pytest.mark.parametrize(("capture", "spills"), [(SPILLING, True), (LATENT, False)])
def test_spilled_registers_are_known_by_the_sectors_of_local_memory(capture: str, spills: bool, profiles: Path) -> None:
    """135 of 144 M sectors are local memory; a kernel whose counters do not say it is not taken to spill."""
    view = perfkit.select(perfkit.load(profiles / capture))
    assert spills == evidence.holds(view, fact="spills")
    assert spills == ("a thread's values in registers" in "; ".join(_steps(view).values()))


def test_a_kernel_outside_of_pytorch_is_not_advised_to_use_it(profiles: Path) -> None:
    """The kernels are Julia's."""
    steps = _steps(perfkit.select(perfkit.load(profiles / SPILLING)))["memory_bound"]
    assert "16-bit types" in steps
    assert "torch" not in steps


def test_a_busy_encoder_speaks_against_a_low_utilisation(profiles: Path) -> None:
    """The encoder works for 9, 63, 66, 67 and 66 % of five seconds; the SMs are meant to be idle."""
    (told,) = diagnosis.findings(perfkit.load(profiles / "monitor" / "dmon_nvenc_load.txt"))
    assert ("log_utilisation", "medium") == (told.rule, told.confidence)
    assert ("the video encoder works for 54.2 % of the time",) == told.against


@pytest.mark.parametrize(("memory", "size", "present"), [("pinned", 183_000_000, False), ("pageable", 100_000, True)])
def test_copies_decide_on_pinning_and_merging(memory: str, size: int, present: bool) -> None:
    """Pinned copies of 183 MB are not to be pinned, and no copy above 64 KB is to be merged with others."""
    copied = [
        {"start_ns": i * 10 * MS, "dur_ns": 8 * MS, "bytes": size, "direction": "H2D", "src_memory": memory}
        for i in range(10)
    ]
    ran = [{"start_ns": i * 10 * MS + 8 * MS, "dur_ns": 2 * MS} for i in range(10)]
    view = _view(kernels=kernels(*ran), copies=copies(*copied))
    merging, pinning = Step("immediate", "Merge", only=("small_copies",)), Step("immediate", "Pin", unless=("pinned",))
    assert ({"immediate": ("Pin",)} if present else {}) == evidence.advice(view, (merging, pinning))
    assert present is bool(re.search("pinned|cudaHostAlloc", str(_steps(view))) is not None)


@pytest.mark.parametrize(
    ("capture", "rule", "against"),
    [
        ("MohanadOdema__DLProf__w_Relu_nsys_profile", "idle_host_code", (FIRST_PASS,)),
        ("PolPuigPuy__OpenACC_Project_PolPuig__report3", "launch_overhead", ()),
    ],
)
def test_long_host_code_between_launches_is_not_their_cost(
    capture: str, rule: str, against: tuple[str, ...], profiles: Path
) -> None:
    """6.0 ms of host code in the 46 pauses of a first inference that hold any; under 10 µs in a pause of OpenACC.

    The inference runs 59 kernels of 34 names, so that nothing is sure to be gained after it.
    """
    found = diagnosis.findings(perfkit.load(profiles / "nsys" / f"{capture}.sqlite"))
    assert {rule} == {f.rule for f in found} & {"idle_host_code", "launch_overhead"}
    (finding,) = (f for f in found if f.rule == rule)
    assert against == finding.against
    assert ("low" if against else "high") == finding.confidence
    doubted = [f.gain.low for f in found if FIRST_PASS in f.against]
    assert ([1.0, 1.0] if against else []) == doubted  # the waits of the first pass are in doubt, too


@pytest.mark.parametrize(("vendor", "banned"), [("amd", r"\bncu\b|\bnsys\b"), ("nvidia", "rocprof|gpu=rocm")])
def test_call_paths_get_the_commands_of_their_vendor(vendor: str, banned: str, profiles: Path) -> None:
    """HPCToolkit names no device: the libraries on the call paths tell an AMD GPU."""
    found = diagnosis.findings(perfkit.load(profiles / "hpctoolkit" / f"hpctoolkit-leo-{vendor}-database"))
    said = [text for f in found for text in (f.next, *(s for steps in f.advice.values() for s in steps))]
    assert any("PROGRAM" in text for text in said)
    assert [] == [text for text in said if re.search(banned, text)]


def test_ncu_is_told_the_longest_kernels_past_the_warm_up() -> None:
    """Of two kernels in ten steps the command names both, the longer first; hostile names stay out of a shell.

    A collective is not among them: ncu would repeat it on one rank, and wait for the others for ever.
    """
    rows = []
    for step in range(10):
        at = step * 10 * MS
        rows += [
            {"start_ns": at, "dur_ns": 2 * MS, "name": "short", "full_name": "void app::short_one<float>(int)"},
            {"start_ns": at + 3 * MS, "dur_ns": 5 * MS, "name": "long", "full_name": "long_one(float*)"},
            {"start_ns": at + 8 * MS, "dur_ns": 6 * MS, "family": "communication", "name": "ncclDevKernel_AllReduce"},
            {"start_ns": at + 9 * MS, "dur_ns": 5000, "name": "x", "full_name": "x'; rm -rf $HOME #"},
        ]
    command = evidence.commands(_view(kernels=kernels(*rows)), "{ncu}")
    assert "--kernel-name 'regex:^(long_one|short_one)$'" in command
    assert "rm -rf" not in command


def test_ranks_get_a_file_each() -> None:
    """A command for several ranks does not let them overwrite one report."""
    view = _view(kernels=pd.concat([kernels({"rank": rank, "start_ns": 0, "dur_ns": MS}) for rank in (0, 1)]))
    assert "-o report.%q{RANK} PROGRAM" in evidence.commands(view, "{nsys}")


def _sql(path: Path, query: str) -> list[tuple[int, ...]]:
    """What a capture answers, read without perfkit."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        return database.execute(query).fetchall()


def test_copies_that_are_pinned_and_hide_behind_little(profiles: Path) -> None:
    """By SQL 446 copies to the GPUs are pinned, of 50.95 GB, and 4 of 3,136 bytes are not; kernels run for 2.3 %.

    Copies beside the computation save no more than the kernels last: at most 1.02x, where 19.9x was once told.
    """
    path = profiles / TWO_H100
    kinds = "SELECT srcKind, COUNT(*), SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 1 GROUP BY 1"
    assert [(0, 4, 3_136), (1, 446, 50_950_504_448)] == _sql(path, kinds)
    union = """
        WITH own AS (SELECT start, "end", COALESCE(MAX("end") OVER (PARTITION BY deviceId ORDER BY start, "end"
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM CUPTI_ACTIVITY_KIND_KERNEL)
        SELECT SUM(MAX("end" - MAX(start, before), 0)) FROM own"""
    ends = """SELECT MIN(start), MAX("end") FROM (SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_KERNEL
        UNION ALL SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_MEMCPY
        UNION ALL SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_MEMSET)"""
    ((kernels_ns,),), ((first, last),) = _sql(path, union), _sql(path, ends)
    share = kernels_ns / (2 * (last - first))
    assert 0.0231 == pytest.approx(share, abs=0.0001)
    (finding,) = (f for f in diagnosis.findings(perfkit.load(path)) if f.rule == "copies_bound")
    assert "The GPU computes for 2.3 % of the time; overlap can hide copies only in this time" in finding.explanation
    assert share == pytest.approx(finding.evidence[1].value, rel=1e-2)
    assert ("not known", "not known", "not known") == (finding.gain.text, finding.gain.likely, finding.gain.best)


@pytest.mark.parametrize(
    "capture",
    [
        "torch/kineto__gpu_metrics_input.json",
        "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
        "nsys/NVIDIA__Fuser__report1_2025.1.sqlite",
    ],
)
def test_a_gain_above_ten_times_says_why_its_range_is_wide(capture: str, profiles: Path) -> None:
    """That of one finding and that of all together; one that begins at nothing is not known."""
    view = perfkit.select(perfkit.load(profiles / capture))
    found, figures = diagnosis.findings(view), diagnosis.figures(view)
    gains = [f.gain for f in found] + [gain for gain in [diagnosis.together(found, figures, view)] if gain]
    large = [gain for gain in gains if gain.high > 10]
    assert large
    assert [] == [gain.reason for gain in large if "The range is wide because" not in gain.reason]
    assert [] == [gain.text for gain in large if gain.low < 1.01 and gain.text != "not known"]


@pytest.mark.parametrize("capture", [TIMESFORMER, "nsys/PolPuigPuy__OpenACC_Project_PolPuig__report3.sqlite"])
def test_all_findings_together_gain_no_less_than_one(capture: str, profiles: Path) -> None:
    """9.8x and 1.5x once gave 1.2x together: neither end of the range is below that of a member."""
    view = perfkit.select(perfkit.load(profiles / capture))
    found, figures = diagnosis.findings(view), diagnosis.figures(view)
    together = diagnosis.together(found, figures, view)
    members = [finding.gain for finding in found if finding.gain.share]
    assert together is not None
    assert len(members) > 1
    assert together.low >= max(gain.low for gain in members)
    assert together.high >= max(gain.high for gain in members)


def test_large_copies_are_not_to_be_merged(profiles: Path) -> None:
    """By SQL no copy of saxpy moves less than 262,144,000 bytes: nothing is said of small copies."""
    path = profiles / "nsys" / "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite"
    assert [(262_144_000,)] == _sql(path, "SELECT MIN(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    said = _steps(perfkit.select(perfkit.load(path)))
    assert "copies_small" not in said
    assert [] == [steps for steps in said.values() if re.search("Merge small copies|Gather small", steps)]


def test_matrix_work_in_16_bits_is_not_told_to_use_them(profiles: Path) -> None:
    """By the trace's own names over 99 % of the time of GEMMs is bf16, of timesformer and of Qwen."""
    qwen = "torch/TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    for capture in (TIMESFORMER, qwen):
        with gzip.open(profiles / capture, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        spent = [(e["name"], e["dur"]) for e in events if e.get("cat") == "kernel" and "gemm" in e["name"].lower()]
        reduced = sum(dur for name, dur in spent if re.search("bf16|bfloat16|nvjet|16816", name))
        assert reduced > 0.99 * sum(dur for _, dur in spent)
        view = perfkit.select(perfkit.load(profiles / capture))
        said = _steps(view)
        assert not {"precision", "tensor_cores"} & set(said)
        assert [] == [steps for steps in said.values() if re.search(MIX, steps)]


@pytest.mark.parametrize(
    ("capture", "inference"),
    [
        ("TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", True),
        ("TraceLens__mi300__resnet_act_checkpoint", False),
    ],
)
def test_only_a_forward_pass_is_told_how_to_serve(capture: str, inference: bool, profiles: Path) -> None:
    """By its own names a chat model has no backward pass: it may store weights in 8 bits, and has no gradients."""
    (path,) = (profiles / "torch").glob(f"{capture}*")
    assert inference is (b"Backward" not in gzip.decompress(path.read_bytes()))
    view = perfkit.select(perfkit.load(path))
    assert inference is evidence.holds(view, fact="inference")
    serving, training = r"4 bits.*continuous batching|continuous batching.*4 bits", r"powerSGD_hook.*pipeline stages"
    for rule, words, wanted in (
        ("memory_bandwidth", serving, inference and not evidence.holds(view, fact="no_matrix")),
        ("exposed_communication", training, not inference),
    ):
        assert wanted is bool(re.search(words, str(evidence.advice(view, rules()[rule].advice))))


def test_hidden_stalls_of_amd_are_no_stall(profiles: Path) -> None:
    """By truth.json 106.5 of 164.8 G cycles of stalls are hidden; of the others memory has 95.0 %."""
    name = "hpctoolkit/hpctoolkit-leo-amd-database"
    totals = json.loads((profiles / "golden" / f"{name}.truth.json").read_text())["total"]
    paid = totals["GCYCLES:STL"] - totals["GCYCLES:STL:HID"]
    figure = diagnosis.figures(perfkit.load(profiles / name))["paths_main_stall_frac"]
    assert totals["GCYCLES:STL:MEM"] / paid == pytest.approx(figure.value)
    assert ("Main stall: mem", "95.0 %") == (figure.label, figure.text)


def test_host_code_gains_of_the_wall_time(profiles: Path) -> None:
    """The main thread has 45.2 s of CPU time, 67.3 % of them below one function, in 110.4 s: 1.38x, never 3.1x."""
    name = "hpctoolkit/hpctoolkit-dlrm-cpu-database"
    truth = json.loads((profiles / "golden" / f"{name}.truth.json").read_text())
    main_s = truth["by_entry"]["CPUTIME (sec)"]["main thread"]
    run = perfkit.load(profiles / name)
    wall_s = run.capture["dur_ns"].max() / 1e9
    (host,) = (f for f in diagnosis.findings(run) if f.rule == "paths_host")
    assert 1 / (1 - host.evidence[0].value * main_s / wall_s) == pytest.approx(host.gain.high)
    assert host.gain.high < 1.39
