"""Every finding there is rests on figures, and says its threshold, what to do by horizon, and what to measure next."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import programs
from cases.situations import Program, Situation, Write, by_nsys, by_ranks, with_scheduling
from diagnosis.complete import complete
from diagnosis.test_baseline import connected, peaks
from diagnosis.test_gpus import beside, meeting
from diagnosis.test_measured import CASES as MEASURED
from diagnosis.test_measured import KERNELS
from diagnosis.test_phases import looped
from diagnosis.test_speed import few
from diagnosis.traces import MS, all_of, leaking, view
from dumps.dump_files import entry, job, pickled, snapshot, steps
from frames import api_calls, copies, kernels
from planted.causes import planted
from planted.test_causes import RULES, run
from readers.nccl_files import init, said, written
from verdicts.test_verdicts import FILES, conclusion

import perfkit
from perfkit import diagnosis, report, tables
from perfkit.diagnosis import confidence, evidence, idle_time
from perfkit.diagnosis.extensions import extensions
from perfkit.diagnosis.rules import rules
from perfkit.diagnosis.rules.idle import IDLE_DATA_LOADING, IDLE_HOST_CODE
from perfkit.diagnosis.rules.rule import Fact
from perfkit.report.notebooks import sample

IDS = sorted(rules())
MEMORY = "memory/"
DUMPS = "flight_recorder/NVIDIA__nvidia-resiliency-ext__"
Found = Callable[
    [Path, Path], tuple[perfkit.Selection, str]
]  # profiles, a folder: what to look at, a file of peaks


def real(path: str) -> Found:
    return lambda profiles, _: (all_of(perfkit.load(profiles / path)), "")


def idle(*_: Path) -> tuple[perfkit.Selection, str]:
    """Two kernels 80 ms apart, and no calls."""
    return view(
        kernels=kernels({"start_ns": 0, "dur_ns": MS}, {"start_ns": 81 * MS, "dur_ns": MS})
    ), ""


def queued(*_: Path) -> tuple[perfkit.Selection, str]:
    """Ten kernels of 30 us, launched at once, with 20 us between them."""
    ran = [{"start_ns": 50_000 * (i + 1), "dur_ns": 30_000, "correlation": i} for i in range(10)]
    calls = [
        {"start_ns": 1000 * i, "dur_ns": 500, "name": "cudaLaunchKernel", "correlation": i}
        for i in range(10)
    ]
    return view(kernels=kernels(*ran), api_calls=api_calls(*calls)), ""


def between_gpus(*_: Path) -> tuple[perfkit.Selection, str]:
    """A copy from another GPU, beside no kernel for 60 of 100 ms."""
    copied = copies(
        {"start_ns": 0, "dur_ns": 60 * MS, "bytes": 6_000_000, "direction": "P2P", "peer_gpu": 1}
    )
    return view(kernels=kernels({"start_ns": 60 * MS, "dur_ns": 40 * MS}), copies=copied), ""


def slowed(*_: Path) -> tuple[perfkit.Selection, str]:
    """Six products of 100 us without, and six of 150 us beside, a collective of 900 us."""
    gemm = {"name": "gemm", "full_name": "gemm", "family": "gemm", "grid_blocks": 132, "stream": 7}
    alone = [{**gemm, "start_ns": i * 100_000, "dur_ns": 100_000} for i in range(6)]
    beside = [{**gemm, "start_ns": 600_000 + i * 150_000, "dur_ns": 150_000} for i in range(6)]
    reduce = {
        "name": "ncclDevKernel_AllReduce",
        "full_name": "ncclDevKernel_AllReduce",
        "family": "communication",
    }
    collective = {**reduce, "start_ns": 600_000, "dur_ns": 900_000, "stream": 20}
    return view(kernels=kernels(*alone, *beside, collective)), ""


def logged(**columns: str) -> Found:
    """A log of nvidia-smi with these columns beside the time, for five seconds."""

    def write(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        lines = [
            ", ".join(
                ["timestamp", "index", "name", *(name.replace("__", ".") for name in columns)]
            )
        ]
        row = ", ".join(["0", "NVIDIA A100-SXM4-80GB", *columns.values()])
        lines += [f"2026/01/01 00:00:0{second}.000, {row}" for second in range(5)]
        (folder / "gpus.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
        return perfkit.select(perfkit.load(folder)), ""

    return write


def other_calls(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
    """Two ranks of which one calls a broadcast where the other calls an all-reduce."""
    calls = [[entry(1)], [entry(1, profiling_name="nccl:broadcast")]]
    return perfkit.select(perfkit.load(job(folder / "job", *calls))), ""


def circle(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
    """Two ranks that receive from each other, and send nothing."""
    receives = [
        [entry(1, profiling_name=f"nccl:recv {rank}<-{1 - rank}", is_p2p=True)] for rank in range(2)
    ]
    return perfkit.select(perfkit.load(job(folder / "job", *receives))), ""


def remembered(events: list[dict[str, Any]], **more: int) -> Found:
    """A memory snapshot of some steps."""

    def seen(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        path = pickled(folder / "run.pickle", snapshot(events, **more), 4)
        return perfkit.select(perfkit.load(path)), ""

    return seen


def network(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
    """NCCL's connections over TCP, without GPUDirect RDMA, and through the CPU's memory."""
    log = connected(folder, "NET/Socket/0", "NET/IB/0", "SHM/direct/direct")
    return perfkit.select(perfkit.load(log)), ""


def one_node(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
    """Two ranks of one node that NCCL connects over its network."""
    lines = [*init(0, 2), *init(1, 2), said("Channel 00/0 : 0[0] -> 1[1] via NET/Socket/0")]
    return perfkit.select(perfkit.load(written(folder / "nccl.log", lines))), ""


def stopped(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
    """Three GPUs work for ten seconds, of which GPU 1 stops after four."""
    lines = ["timestamp, index, name, utilization.gpu [%]"]
    for second in range(10):
        for gpu in range(3):
            busy = 0 if gpu == 1 and second >= 4 else 100
            lines.append(f"2026/01/01 00:00:{second:02d}.000, {gpu}, NVIDIA H100, {busy} %")
    (folder / "gpus.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return perfkit.select(perfkit.load(folder)), ""


def situation(program: Program, write: Write = by_nsys) -> Found:
    """A program with one cause, on a model of a machine."""

    def recorded(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        source = Situation(program, write).recorded(folder).source
        return perfkit.select(perfkit.load(source)), ""

    return recorded


def training(tflops: int) -> Found:
    """A real log of Megatron, 149 TFLOP/s of a GPU with this peak."""

    def seen(profiles: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        own = peaks(folder, f"mine,{tflops},2000")
        return perfkit.select(
            perfkit.load(profiles / "monitor" / "superbench__megatron_deepspeed.log")
        ), own

    return seen


# Findings that tests of planted causes, of measured ones and of verdicts do not tell; these look at theirs too.
PRODUCED: dict[str, Found] = {
    "idle": idle,
    "exposed_copy": between_gpus,
    "ranks": lambda *_: (meeting(10, 10, 16, grids=(8, 8, 16)), ""),
    "few_blocks": lambda *_: (few(), ""),
    "slowed_kernels": slowed,
    "log_throttling": real("reports/power_limit_reached/gpu.csv"),
    "gpu_unused": lambda *_: (beside(1), ""),
    "idle_launch": lambda *_: (perfkit.select(perfkit.load(sample("bert_a100_optimised"))), ""),
    "idle_kernel_wait": queued,
    "pauses": lambda *_: (perfkit.select(looped(pause=1000).run), ""),
    "log_power": logged(
        utilization__gpu="100 %", power__draw="180 W", enforced__power__limit="400 W"
    ),
    "log_waited_for": real("reports/spinning_gpus/gpu.csv"),
    "log_little_power": logged(
        utilization__gpu="100 %", power__draw="100 W", enforced__power__limit="400 W"
    ),
    "network_cards": real("reports/nccl_one_network_card/nccl.txt"),
    "hang_absent": real(f"{DUMPS}lock_gil_1st"),
    "hang_behind": real(f"{DUMPS}gpu_error_2nd"),
    "hang_mismatch": other_calls,
    "hang_ring": circle,
    "memory_activations": real(
        f"{MEMORY}Wedsonlin__assignment2-systems__medium_1024_training.pickle"
    ),
    "memory_states": real(f"{MEMORY}kkaitlyn111__cs336-a2-systems__ctx128_fullstep.pickle"),
    "memory_refused": remembered(steps(), refused=1 << 30),
    "memory_fragmented": remembered(steps(), reserved=1 << 32),
    "memory_grows": remembered(steps(keeps=1 << 24)),
    "inspected_late": real("nccl_inspector/h100x8_late_rank"),
    "memory_growth": lambda *_: (perfkit.select(leaking(100)), ""),
    "paths_allocation": real("hpctoolkit/hpctoolkit-leo-amd-database"),
    "paths_barriers": real("hpctoolkit/HPCToolkit__hpcviewer.e4__lmp-openmp-database"),
    "network_tcp": network,
    "network_shm": network,
    "network_inside": one_node,
    "log_stopped": stopped,
    "network_by_host": network,
    "gpu_shared": situation(programs.sharing_a_gpu),
    "cpu_cores": situation(programs.losing_its_core, with_scheduling),
    "no_request": situation(programs.waiting_for_requests),
    "allocator_off": situation(programs.allocating_each_tensor),
    "step_lengths": situation(programs.freeing_in_some_steps),
    "late_in_turn": situation(programs.routing_to_one_expert, by_ranks),
    "receive_wait": situation(programs.pipelining, by_ranks),
    "training_mfu": training(700),
}
# Gaps whose launch was lost, or waits that no rule about waits tells of.
NOT_PRODUCED = {"idle_unattributed", "idle_sync"}


def test_every_finding_is_looked_at_and_shown() -> None:
    of_others = {*RULES.values(), *(first for first, *_ in (*MEASURED.values(), *KERNELS.values()))}
    of_others |= {rule for file in FILES for rule in conclusion(file)["told"]}
    assert set(IDS) == {*PRODUCED, *NOT_PRODUCED} | of_others
    assert not of_others & {*PRODUCED, *NOT_PRODUCED}
    (finding,) = diagnosis.findings(run(planted("small copies")))
    html = report.key_findings([replace(finding, threshold=f"<b>{finding.threshold}")], {}).html
    assert "Threshold: &lt;b&gt;A copy of at most 64 KB is small" in html


@pytest.mark.parametrize("rule", IDS)
def test_words_for_every_finding(rule: str) -> None:
    source = (
        r"convention|guide|chapter|vendor|Nsight Compute|NVML|CUDA Runtime|NVIDIA/|PaLM|published"
    )
    of = rules()[rule]
    assert re.search(source, of.threshold)
    assert all((of.question.endswith("?"), of.needs, of.evidence, of.target, of.next))
    assert set(of.objections) <= set(confidence.CHECKS)
    assert all(hasattr(tables, name) for table in of.needs for name in table.split("|"))
    assert [step for step in of.advice if not step.when.holding], (
        "advice for programs of every kind"
    )


def test_every_fact_has_its_evidence_and_every_objection_of_a_rule_its_check() -> None:
    known = {
        fact for facts in (evidence.FACTS, *(part.FACTS for part in extensions())) for fact in facts
    }
    assert {*Fact} == known
    named = {objection for rule in rules().values() for objection in rule.objections}
    assert named == set(confidence.CHECKS)


@pytest.mark.parametrize("rule", PRODUCED)
def test_every_finding_is_complete(rule: str, profiles: Path, tmp_path: Path) -> None:
    view, peaks = PRODUCED[rule](profiles, tmp_path)
    assert rule in {finding.rule for finding in complete(view, peaks)}


def test_what_is_not_replayed_says_so() -> None:
    view = perfkit.select(run(planted("launch overhead")))
    of_code = idle_time._finding(
        IDLE_HOST_CODE, "", (diagnosis.figures(view)["idle_frac"],), "", 0.5
    )
    assert of_code.gain.why.endswith(
        "not replayed, because nothing recorded says how much of it could go"
    )
    of_loading = idle_time._finding(
        IDLE_DATA_LOADING, "", (diagnosis.figures(view)["idle_frac"],), "", 0.5
    )
    assert "not replayed" not in of_loading.gain.why
