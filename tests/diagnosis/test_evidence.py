"""Advice is left out where the recording disproves it, and commands name what this run shows."""

import gzip
import math
import re
from pathlib import Path

import extras
import pytest
from diagnosis.traces import MS, all_of, run, told, view, work
from frames import copies, kernels, profile
from sampled import samples

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import evidence
from perfkit.diagnosis.commands import commands
from perfkit.diagnosis.rules import rules
from perfkit.diagnosis.rules.machine import TRAINING_OPTIMIZER
from perfkit.diagnosis.rules.rule import Fact, now
from perfkit.diagnosis.warming import FIRST_PASS
from perfkit.run import Run

# Capture, finding, what its advice must not say, and the fact of the recording that disproves it.
BERT = "leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_torch_nsight.csv"
TIMESFORMER = "torch/TraceLens__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz"
QWEN = "torch/TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
TWO_H100 = "nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite"
OPENACC = "nsys/PolPuigPuy__OpenACC_Project_PolPuig__report3.sqlite"
SPILLING, LATENT = (
    "ncu/eschnett__IndexSpaces.jl__profile.ncu-rep",
    "ncu/MgMap__Hyper-Spec-M__profile.ncu-rep",
)
PIN, MIX = r"[Pp]inned|cudaHostAlloc|pin_memory|Merge small", r"autocast|mixed precision|TF32"
BLOCK = r"__launch_bounds__|maxrregcount|#pragma|__shared__|128 or 256"
POWER = "ncu/amitadate__GPU_Power_Model__PS1_10_profile.ncu-rep"
DISPROVED = {
    "ncu/AlpriElse__cs599k__rms-norm-pytorch.ncu-rep": (
        "compute_bound",
        rf"ncu --set|{MIX}",
        Fact.NO_MATRIX,
    ),
    "ncu/flyinglandlord__sglang__profile.ncu-rep": (
        "compute_bound",
        rf"ncu --set|{MIX}",
        Fact.COUNTERS,
    ),
    f"ncu/{BERT}": ("latency_bound", BLOCK, Fact.LIBRARY_KERNELS),
    LATENT: ("latency_bound", r"Launch enough blocks|Raise occupancy", Fact.FULL_GRID),
    POWER: ("small_blocks", r"many blocks", Fact.FULL_GRID),
    QWEN: ("computation", MIX, Fact.REDUCED),
    TWO_H100: ("copies_bound", PIN, Fact.PINNED),
    OPENACC: ("synchronisation", PIN, Fact.PINNED),
}


def _steps(of: perfkit.Selection) -> dict[str, str]:
    return {
        f.rule: "; ".join(s for texts in f.advice.values() for s in texts)
        for f in diagnosis.findings(all_of(of))
    }


@pytest.mark.parametrize("capture", DISPROVED)
def test_advice_that_the_recording_disproves_is_left_out(capture: str, profiles: Path) -> None:
    extras.require_reader(capture)
    rule, banned, fact = DISPROVED[capture]
    chosen = all_of(perfkit.load(profiles / capture))
    assert evidence.holds(chosen, fact=fact)
    said = _steps(chosen)
    assert rule in said
    assert [] == [step for step in said.values() if re.search(banned, step)]


def test_spilled_registers_are_known_by_the_sectors_of_local_memory(profiles: Path) -> None:
    """135 of 144 M sectors are local memory; a kernel whose counters do not say it is not taken to spill."""
    extras.require_reader(SPILLING, LATENT)
    for capture, spills in ((SPILLING, True), (LATENT, False)):
        said = _steps(all_of(perfkit.load(profiles / capture)))
        assert spills == ("Allow more registers per thread" in said.get("spills", ""))
        if spills:  # the kernels are Julia's
            assert ("16-bit types" in said["memory_bound"], "torch" in said["memory_bound"]) == (
                True,
                False,
            )


V100 = "torch/HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
GP100 = "torch/HTA__with_gpu_user_annotation__step_based_trace_2543932.json.gz"


def test_no_gpu_is_told_to_use_number_formats_that_it_lacks(profiles: Path) -> None:
    """Tensor cores of a V100 know float16 only; a GP100 has none, and neither has TF32."""
    old, older = (_steps(all_of(perfkit.load(profiles / capture))) for capture in (V100, GP100))
    assert "with float16" in old["precision"]
    assert "with bfloat16" not in old["precision"]
    assert "8 bits" not in old["precision"]
    assert "precision" not in older
    assert not re.search(
        "TF32|autocast",
        "; ".join((old["precision"].replace("torch.autocast with float16", ""), *older.values())),
    )


@pytest.mark.parametrize(
    ("log", "against", "confidence"),
    [
        (
            "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__idle__dmon.txt",
            ("only 5 readings",),
            "medium",
        ),
        (
            "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__idle__query-gpu.csv",
            ("only 1 reading",),
            "medium",
        ),
        ("smi_query__rtx4090_training_run.csv", (), "high"),
    ],
)
def test_few_readings_are_little_evidence(
    log: str, against: tuple[str, ...], confidence: str, profiles: Path
) -> None:
    """A log of 1 to 5 lines, of a GPU that no program used, was evidence of high confidence.

    That no kernel ran is what is found in the first two, and no objection to it.
    """
    (finding,) = diagnosis.findings(perfkit.load(profiles / "monitor" / log))
    assert confidence == finding.confidence
    assert len(against) == len(finding.against)
    assert all(part in why for part, why in zip(against, finding.against, strict=True))
    assert "call_paths" not in str(finding.advice)


def test_little_power_at_one_reading_of_little_work_is_no_finding(profiles: Path) -> None:
    """A kernel ran 7 % of the time: that the GPU draws little power follows from it."""
    log = "nvidia-smi__nvidia-geforce-rtx-4080-super__595.71.05__load__query-gpu.csv"
    assert [] == diagnosis.findings(perfkit.load(profiles / "monitor" / log))


@pytest.mark.parametrize(
    ("memory", "size", "present"), [("pinned", 183_000_000, False), ("pageable", 100_000, True)]
)
def test_copies_decide_on_pinning_and_merging(memory: str, size: int, present: bool) -> None:
    copied = {"dur_ns": 8 * MS, "bytes": size, "direction": "H2D", "src_memory": memory}
    ran = kernels(*({"start_ns": i * 10 * MS + 8 * MS, "dur_ns": 2 * MS} for i in range(10)))
    chosen = view(
        kernels=ran, copies=copies(*({"start_ns": i * 10 * MS, **copied} for i in range(10)))
    )
    merging = now("Merge", when=Fact.SMALL_COPIES)
    pinning = now("Pin", when=~Fact.PINNED)
    assert ({"immediate": ("Pin",)} if present else {}) == evidence.advice(
        chosen, (merging, pinning)
    )
    assert present is bool(re.search("pinned|cudaHostAlloc", str(_steps(chosen))) is not None)


@pytest.mark.parametrize(
    ("capture", "rule", "against"),
    [
        ("nsys/MohanadOdema__DLProf__w_Relu_nsys_profile.sqlite", "idle_host_code", (FIRST_PASS,)),
        (OPENACC, "launch_overhead", ()),
    ],
)
def test_long_host_code_between_launches_is_not_their_cost(
    capture: str, rule: str, against: tuple[str, ...], profiles: Path
) -> None:
    """6.0 ms of host code in the 46 pauses of a first inference that hold any; under 10 µs in a pause of OpenACC.

    The inference runs 59 kernels of 34 names, so that nothing is sure to be gained after it.
    """
    found = told(perfkit.load(profiles / capture))
    assert {rule} == set(found) & {"idle_host_code", "launch_overhead"}
    assert (against, "low" if against else "high") == (found[rule].against, found[rule].confidence)
    doubted = [f.gain.low for f in found.values() if FIRST_PASS in f.against]
    assert (
        [1.0, 1.0] if against else []
    ) == doubted  # the waits of the first pass are in doubt, too


def test_advice_to_programs_without_pytorch_names_no_part_of_it(profiles: Path) -> None:
    """OpenACC waits 1,942 times in cuStreamSynchronize, and allocates without a caching allocator."""
    found = told(perfkit.load(profiles / OPENACC))
    assert "1,942 by cuStreamSynchronize" in found["synchronisation"].explanation
    first = found["synchronisation"].advice["immediate"][0]
    assert first.startswith("Wait for the GPU only where the CPU needs a result")
    assert not re.search("PyTorch|torch|out=", str(found["idle_memory"].advice))


@pytest.mark.parametrize(
    ("vendor", "banned"), [("amd", r"\bncu\b|\bnsys\b"), ("nvidia", "rocprof|gpu=rocm")]
)
def test_call_paths_get_the_commands_of_their_vendor(
    vendor: str, banned: str, profiles: Path
) -> None:
    """HPCToolkit names no device: the libraries on the call paths tell an AMD GPU."""
    found = diagnosis.findings(
        perfkit.load(profiles / "hpctoolkit" / f"hpctoolkit-leo-{vendor}-database")
    )
    said = [
        text for f in found for text in (f.next, *(s for steps in f.advice.values() for s in steps))
    ]
    assert any("PROGRAM" in text for text in said)
    assert [] == [text for text in said if re.search(banned, text)]


def test_commands_name_the_longest_kernels_and_the_rank() -> None:
    """Of two kernels in ten steps the command names both, the longer first; hostile names stay out of a shell.

    A collective is not among them: ncu would repeat it on one rank, and wait for the others for ever.
    """
    rows = []
    for at in range(0, 100 * MS, 10 * MS):
        rows += [
            {
                "start_ns": at,
                "dur_ns": 2 * MS,
                "name": "short",
                "full_name": "void app::short_one<float>(int)",
            },
            {
                "start_ns": at + 3 * MS,
                "dur_ns": 5 * MS,
                "name": "long",
                "full_name": "long_one(float*)",
            },
            {
                "start_ns": at + 8 * MS,
                "dur_ns": 6 * MS,
                "family": "communication",
                "name": "ncclDevKernel_AllReduce",
            },
            {
                "start_ns": at + 9 * MS,
                "dur_ns": 5000,
                "name": "x",
                "full_name": "x'; rm -rf $HOME #",
            },
        ]
    command = commands(view(kernels=kernels(*rows)), "{ncu}")
    assert "--kernel-name 'regex:^(long_one|short_one)$'" in command
    assert "rm -rf" not in command
    ranks = view(kernels=kernels(*({"rank": rank, "start_ns": 0, "dur_ns": MS} for rank in (0, 1))))
    assert "-o report.%q{RANK} PROGRAM" in commands(ranks, "{nsys}")  # a report each


def test_only_programs_with_pytorch_are_recorded_by_its_profiler(profiles: Path) -> None:
    """ICON is Fortran with OpenACC. A log without kernels says nothing of the program."""
    fortran = all_of(perfkit.load(profiles / "nsys/NTHU-SC__ISC25-ICON-C__gpu.sqlite"))
    stacks = "nsys profile --trace=cuda,nvtx,osrt --gpu-metrics-devices=all -o report --sample=process-tree"
    stacks += " --cudabacktrace=all"
    assert [f"{stacks} PROGRAM"] * 2 == [
        commands(fortran, text) for text in ("{torch}", "{callers}")
    ]
    for of in (
        view(),
        view(
            kernels=kernels(
                {
                    "start_ns": 0,
                    "dur_ns": MS,
                    "full_name": "void at::native::fill_kernel<float>(int)",
                }
            )
        ),
    ):
        assert "perfkit record torch" == commands(of, "{torch}")
        assert commands(of, "{callers}").startswith(
            "perfkit record torch; or record call stacks and sys"
        )


def test_copies_that_are_pinned_and_hide_behind_little(profiles: Path) -> None:
    """By SQL 446 copies to the GPUs are pinned, of 50.95 GB, and 4 of 3,136 bytes are not; kernels run for 2.3123 %.

    Copies beside the computation save no more than the kernels last: at most 1.02x, where 19.9x was once told.
    """
    finding = told(perfkit.load(profiles / TWO_H100))["copies_bound"]
    assert (
        "The GPU computes for 2.3 % of the time; overlap can hide copies only in this time"
        in finding.explanation
    )
    assert 0.023123 == pytest.approx(finding.evidence[1].value, rel=1e-2)
    assert {"not known"} == {finding.gain.text, finding.gain.likely, finding.gain.best}


@pytest.mark.parametrize(
    ("capture", "wide"),
    [
        ("torch/kineto__gpu_metrics_input.json", True),
        ("nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite", True),
        ("nsys/NVIDIA__Fuser__report1_2025.1.sqlite", True),
        (TIMESFORMER, False),
        (OPENACC, False),
    ],
)
def test_the_gain_of_all_findings_together_and_gains_above_ten_times(
    capture: str, wide: bool, profiles: Path
) -> None:
    """9.8x and 1.5x once gave 1.2x together: neither end of the range is below that of a member.

    Above ten times a gain says what is not recorded; one that begins at nothing is not known.
    """
    chosen = all_of(perfkit.load(profiles / capture))
    found, figures = diagnosis.findings(chosen), diagnosis.figures(chosen)
    together = diagnosis.together(found, figures, chosen)
    gains = [f.gain for f in found] + [gain for gain in [together] if gain]
    large = [gain for gain in gains if 10 < gain.high < math.inf]
    assert large or not wide
    assert [] == [gain.why for gain in large if "Nothing recorded says how much" not in gain.why]
    assert [] == [gain.text for gain in large if gain.low < 1.01 and gain.text != "not known"]
    members = [finding.gain for finding in found if finding.gain.share]
    assert wide or (together is not None and len(members) > 1)
    if together and not wide:
        assert together.low >= max(gain.low for gain in members)
        assert together.high >= max(gain.high for gain in members)


@pytest.mark.parametrize(
    ("capture", "inference"),
    [(QWEN, True), ("torch/TraceLens__mi300__resnet_act_checkpoint.json.gz", False)],
)
def test_only_a_forward_pass_is_told_how_to_serve(
    capture: str, inference: bool, profiles: Path
) -> None:
    """By its own names a chat model has no backward pass: it may store weights in 8 bits, and has no gradients."""
    path = profiles / capture
    assert inference is (b"Backward" not in gzip.decompress(path.read_bytes()))
    chosen = all_of(perfkit.load(path))
    assert inference is evidence.holds(chosen, fact=Fact.INFERENCE)
    serving, training = (
        r"4 bits.*continuous batching|continuous batching.*4 bits",
        r"powerSGD_hook.*pipeline stages",
    )
    for rule, words, wanted in (
        (
            "memory_bandwidth",
            serving,
            inference and not evidence.holds(chosen, fact=Fact.NO_MATRIX),
        ),
        ("exposed_communication", training, not inference),
    ):
        assert wanted is bool(re.search(words, str(evidence.advice(chosen, rules()[rule].advice))))


def waited(call: str) -> perfkit.Selection:
    """Ten kernels of 1 ms, after each of which the CPU waits in a call."""
    works = [work("aten::mul", (3 * i + 1) * MS, (3 * i + 1) * MS, MS) for i in range(10)]
    calls = [
        {"start_ns": (3 * i + 1) * MS + 5_000, "dur_ns": MS, "name": call, "rank": 0}
        for i in range(10)
    ]
    return all_of(run(*works, calls=calls))


@pytest.mark.parametrize(
    ("call", "is_of_gpu"), [("cudaDeviceSynchronize", True), ("cudaStreamSynchronize", False)]
)
def test_waits_for_a_whole_gpu_are_no_reading_of_a_value(call: str, is_of_gpu: bool) -> None:
    assert evidence.holds(waited(call), fact=Fact.DEVICE_WAITS) == is_of_gpu


def test_work_of_one_stream_waits_for_no_other_stream() -> None:
    rows = [{"start_ns": i * MS, "dur_ns": MS, "stream": 7} for i in range(2)]
    assert evidence.holds(view(kernels=kernels(*rows)), fact=Fact.ONE_STREAM)
    rows[1]["stream"] = 8
    assert not evidence.holds(view(kernels=kernels(*rows)), fact=Fact.ONE_STREAM)


def test_threads_of_openmp_are_not_told_to_become_threads(profiles: Path) -> None:
    """Its hottest function is main._omp_fn.0, which the compiler made of a parallel region."""
    capture = "hpctoolkit/yuninxia__HPCToolkit__loops-perf-database"
    extras.require_reader(capture)
    said = _steps(all_of(perfkit.load(profiles / capture)))["paths_host"]
    assert "more threads" not in said
    assert "omp simd" in said


@pytest.mark.parametrize(("size", "is_advised"), [(1, False), (4, True)])
def test_a_training_on_one_gpu_gets_no_advice_about_several(size: int, is_advised: bool) -> None:
    log = profile("deepspeed", "log", 0, 0, SAMPLES=samples(world_size_count=[float(size)]))
    steps = TRAINING_OPTIMIZER.advice
    told = str(evidence.advice(perfkit.select(Run([log])), steps))
    assert is_advised == ("ZeRO" in told)
