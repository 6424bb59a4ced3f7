"""`python -m perfkit.workloads` on the CPU: times, the folders it makes, and what it refuses."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import perfkit
from perfkit import workloads
from perfkit.analysis.flops import counted as counted_operators
from perfkit.cli import main as perfkit_command
from perfkit.errors import PerfkitError
from perfkit.hardware import Peaks
from perfkit.workloads import SIZES, TRACED, Loader, Plan, flops, running
from perfkit.workloads.__main__ import main
from perfkit.workloads.baseline import Device
from perfkit.workloads.running import (
    CpuClock,
    GpuClock,
    Times,
    clock,
    implied,
    measure,
    record,
    summary,
    timed,
)

TRACE, TIMINGS = "rank-0.pt.trace.json.gz", "timings.json"
BATCHES = (1, 4)
RECORDED = [
    ("cnn", "train"),
    ("bert", "inference"),
]  # test_models counts the operations of every model
TINY = {"batches": (8,), "steps": 2, "warm_up": 0, "loader": Loader(resident=True)}
CPU, A100 = "left out: the device is a CPU", "NVIDIA A100 80GB PCIe"


@pytest.fixture(scope="module", params=RECORDED, ids="-".join)
def recorded(
    torch: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a small model's training or inference, with two batch sizes of three steps."""
    model, mode = request.param
    out = tmp_path_factory.mktemp("runs") / mode / model
    small = ["--scale", "small", "--batch", *map(str, BATCHES), "--steps", "3", "--warm-up", "1"]
    assert 0 == main([model, "--mode", mode, *small, "--record", str(out)])
    return out


def test_folder_holds_trace_and_timings(recorded: Path) -> None:
    """A row per batch size, of three steps, and the rate that follows from their median; numbers name their unit.

    On a CPU there is nothing for NVIDIA's tools, and the timings say so; as a run the folder is the trace alone.
    """
    assert [TRACE, TIMINGS] == sorted(item.name for item in recorded.iterdir())
    content: dict[str, Any] = json.loads((recorded / TIMINGS).read_text(encoding="utf-8"))
    assert {"nsys": CPU, "ncu": CPU, "nvidia-smi": CPU} == content["captures"]
    said = [content["model"], content["mode"], content["precision"], content["device"]["kind"]]
    assert [recorded.name, recorded.parent.name, "fp32", "cpu"] == said
    assert {"perfkit", "python", "torch", "cuda"} == set(content["versions"])
    assert list(BATCHES) == [row["batch_count"] for row in content["rows"]]
    for row in content["rows"]:
        assert [] == [name for name in row if not name.endswith(tuple(content["units"]))]
        assert 3 == row["steps_count"] == len(row["step_ns"])
        assert sorted(row["step_ns"])[1] == row["step_median_ns"]
        assert row["step_flops"] / row["step_median_ns"] * 1e9 == pytest.approx(
            row["flops_per_s"], rel=1e-12
        )
        assert row["batch_count"] * 3e9 / row["wall_ns"] == pytest.approx(
            row["samples_per_s"], rel=1e-12
        )
        assert row["wall_ns"] >= sum(row["step_ns"])
    run = perfkit.load(recorded)
    assert [TRACE] == [profile.path.name for profile in run.profiles]
    assert TRACED == (run.ranges["kind"] == "step").sum()


def test_trace_has_the_operations_of_the_formula(recorded: Path) -> None:
    """perfkit's own count of the trace's operators, from their shapes, is that of the recorded steps by formula.

    Fused attention computes its scores anew in the backward pass: 7 products of which the formula counts 6.
    """
    *_, work = counted_operators(perfkit.load(recorded).ops)
    found = work.loc[
        work["model"].astype(str).str.contains("gemm|convolution|attention"), "flops"
    ].sum()
    plan, batch = Plan(recorded.name, mode=recorded.parent.name, size=SIZES["small"]), BATCHES[-1]
    attention = [
        layer.flops for layer in flops.layers(plan, batch) if layer.name.endswith(".attention")
    ]
    anew = sum(attention) // 2 if plan.mode == "train" else 0
    assert TRACED * (flops.step(plan, batch) + anew) == found


@pytest.mark.usefixtures("without_kernels")
def test_report_of_a_folder(torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording of the CPU alone gives a report that says that no kernel was recorded, and how to record them."""
    run, out = tmp_path / "run", tmp_path / "report"
    assert 0 == main(["mlp", "--batch", "128", "--steps", "5", "--record", str(run)])
    assert capsys.readouterr().out.endswith(f"perfkit report {run}\n")
    result = CliRunner().invoke(perfkit_command, ["report", str(run), "--out", str(out)])
    assert 0 == result.exit_code, result.output
    summary, figures = (
        (out / name).read_text(encoding="utf-8") for name in ("summary.md", "figures.md")
    )
    for said in (
        *(
            "- Recorded with: PyTorch profiler",
            "time for data",
            "- Step time: **[",
            "- GPUs: not recorded",
        ),
        *("**Which kernels ran on the GPU?", "Record: `torch.profiler.profile(activities="),
    ):
        assert said in summary
    assert "| Median step |" in figures
    assert "| Waiting for input |" in figures
    page = "".join(path.read_text(encoding="utf-8") for path in sorted(out.glob("*.html")))
    assert ("Step 3" in page, "No activity" in page, "Busy time of each GPU" in page) == (
        True,
        False,
        False,
    )
    assert "No kernels were recorded. What records them: torch.profiler.profile(" in page


def test_inference_prints_a_table(torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "mlp",
        "--mode",
        "inference",
        "--batch",
        "1",
        "8",
        "--steps",
        "3",
        "--warm-up",
        "0",
        "--resident",
    ]
    assert 0 == main(argv)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["batch", "step"]
    assert ["1", "8"] == [line.split()[0] for line in lines]
    assert all(line.endswith("not known") for line in lines)


def test_without_pytorch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--print-commands runs nothing and needs neither PyTorch nor a GPU; else the error names the command."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert 0 == main(["mlp", "--device", "cuda", "--record", "run", "--print-commands"])
    assert (
        workloads.lines(Plan("mlp", device="cuda"), Path("run"))
        == capsys.readouterr().out.splitlines()
    )
    assert not Path("run").exists()
    assert 1 == main(["mlp"])
    assert "pip install 'perfkit[torch]'" in capsys.readouterr().err


def test_without_a_gpu_cuda_is_refused(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that PyTorch does not find cannot be timed, and the CPU is not taken in its place."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        PerfkitError, match=r"device: 'cuda', and PyTorch .* finds no GPU. Choose cpu"
    ):
        measure(Plan("mlp", device="cuda"))


def test_folder_that_is_not_empty_is_refused(torch: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(PerfkitError, match=r"the folder is not empty \(notes.txt\)"):
        record(Plan("mlp", steps=1), tmp_path)
    with pytest.raises(PerfkitError, match=r"notes.txt: is no folder"):
        record(Plan("mlp", steps=1), tmp_path / "notes.txt")
    assert ["notes.txt"] == [item.name for item in tmp_path.iterdir()]


@pytest.mark.parametrize(("device", "variable"), [("cpu", "CXX"), ("cuda", "CC")])
def test_compiling_needs_a_compiler(
    torch: Any, monkeypatch: pytest.MonkeyPatch, device: str, variable: str
) -> None:
    """The compiler that the environment names must be there, before the model is moved or compiled."""
    monkeypatch.setenv(variable, "no-such-compiler")
    with pytest.raises(
        PerfkitError, match=r"compile: there is no C.* compiler \(no-such-compiler\). Install one"
    ):
        running.workload(torch, Plan("mlp", device=device, compile=True))


def test_share_of_a_peak(torch: Any) -> None:
    """With a peak of 1 PFLOP/s the share is the rate over it; with one of 1 kFLOP/s the peak is another device's."""
    plan = Plan("mlp", **TINY)
    (row,) = measure(plan, peaks=[Peaks(running.device(plan).name, {"fp32": 1e15})])
    assert row["flops_per_s"] / 1e15 == pytest.approx(row["peak_frac"], rel=1e-12)
    with pytest.raises(PerfkitError, match=r"train of mlp, batch 8, fp32, on .*% of the peak"):
        measure(plan, peaks=[Peaks(running.device(plan).name, {"fp32": 1e3})])


def test_peak_is_that_of_the_precision() -> None:
    """An A100's dense peaks; a GPU without tensor cores for FP16 is compared with its other units."""
    new, old = (Device(None, "cuda", A100, capability) for capability in ((8, 0), (6, 0)))
    cases = {
        (new, "fp32"): 19.5e12,
        (new, "tf32"): 156e12,
        (new, "fp16"): 312e12,
        (new, "bf16"): 312e12,
    }
    for (used, name), expected in {**cases, (old, "fp16"): 78e12}.items():
        assert expected == running.peak_flops(used, Plan("mlp", device="cuda", precision=name))


def test_precision_of_fp32_products_is_set_and_set_back() -> None:
    """FP32 turns TF32 off for convolutions too, which PyTorch would compute in it; TF32 turns both on."""
    cudnn, told = SimpleNamespace(allow_tf32=True), ["highest"]
    torch = SimpleNamespace(
        backends=SimpleNamespace(cudnn=cudnn),
        get_float32_matmul_precision=lambda: told[-1],
        set_float32_matmul_precision=told.append,
    )
    used = Device(torch, "cuda", A100, (8, 0))
    for name, expected in (("fp32", ("highest", False)), ("tf32", ("high", True))):
        with running.computing(used, Plan("mlp", device="cuda", precision=name)):
            assert expected == (told[-1], cudnn.allow_tf32)
        assert ("highest", True) == (told[-1], cudnn.allow_tf32)
    volta = Device(None, "cuda", "Tesla V100-SXM2-16GB", (7, 0))
    with pytest.raises(PerfkitError, match="Tesla V100-SXM2-16GB does not compute in TF32"):
        running.computing(volta, Plan("mlp", device="cuda", precision="tf32")).__enter__()


def test_batch_beyond_the_memory_is_named(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **options: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(running, "_times", full)
    with pytest.raises(PerfkitError, match="batch: 4096 of mlp does not fit into the memory of"):
        measure(Plan("mlp", batches=(4096,)))


def test_wrong_arguments_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["mlp", "--mark-steps"])
    assert (
        "mark-steps: marks steps for NVIDIA's tools, and the device is not 'cuda'"
        in capsys.readouterr().err
    )


def test_tools_that_are_there_are_called(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each capture is made, or it is said why not: here nsys works, ncu fails, and nvidia-smi is absent."""
    ran = []

    def run(command: workloads.Command) -> str | None:
        ran.append(command.argv[0])
        return "==ERROR== ERR_NVGPUCTRPERM" if command.argv[0] == "ncu" else None

    monkeypatch.setattr(workloads, "run", run)
    monkeypatch.setattr(
        running.shutil, "which", lambda name: None if name == "nvidia-smi" else name
    )
    plan = Plan("mlp", device="cuda")
    made = running._captures(
        Device(torch, "cuda", "a GPU", (8, 0)), plan, tmp_path, gpu_metrics=False
    )
    assert ["nsys", "nsys", "ncu"] == ran
    assert {
        "nsys": "mlp.nsys-rep, mlp.sqlite",
        "ncu": "==ERROR== ERR_NVGPUCTRPERM",
        "nvidia-smi": "left out: not on PATH",
    } == made


MS = 1_000_000


class Stream:
    """A stand-in for torch.cuda: work takes the GPU's time, not the host's, and events are reached in order."""

    def __init__(self) -> None:
        self.now_ms, self.waits = 0.0, 0

    def Event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=None, elapsed_time=lambda other: other.at - event.at)
        event.record = lambda: setattr(event, "at", self.now_ms)
        return event

    def synchronize(self) -> None:
        self.waits += 1


def test_cpu_times_are_those_of_the_host() -> None:
    """A step of 20 ms takes at least that, its wait of 5 ms is not part of it, and the whole holds both.

    Every step gets the next batch, and no batch is taken beyond the last step.
    """
    seen: list[int] = []

    def slow() -> Iterator[int]:
        for number in range(5):
            time.sleep(0.005)
            yield number

    def step(batch: int) -> None:
        seen.append(batch)
        time.sleep(0.02)

    left = slow()
    assert isinstance(clock(SimpleNamespace(cuda=Stream()), "cpu"), CpuClock)
    times = timed(step, left, 3, CpuClock())
    assert ([0, 1, 2], [3, 4]) == (seen, list(left))
    assert (3, 3) == (len(times.step_ns), len(times.wait_ns))
    assert min(times.step_ns) >= 20 * MS
    assert min(times.wait_ns) >= 5 * MS
    assert times.wall_ns >= sum(times.step_ns) + sum(times.wait_ns)


def test_gpu_times_are_those_of_its_events() -> None:
    """Steps of 3 ms on the GPU take 3 ms though the host spends none; it waits before the first and after the last."""
    stream = Stream()

    def step(batch: int) -> None:
        stream.now_ms += batch

    used = clock(SimpleNamespace(cuda=stream), "cuda")
    assert isinstance(used, GpuClock)
    assert [3.0 * MS, 3.0 * MS, 4.0 * MS] == timed(step, iter([3, 3, 4]), 3, used).step_ns
    assert 2 == stream.waits


def test_summary_by_hand() -> None:
    """Of 10, 20, 30, 40, 100: median 30, quartiles 20 and 40; the median wait of 1, 2, 9, 9, 9 is 9."""
    found = summary(Times([1.0, 2.0, 9.0, 9.0, 9.0], [40.0, 10.0, 100.0, 20.0, 30.0], 250))
    expected = {"median": 30.0, "p25": 20.0, "p75": 40.0, "min": 10.0, "max": 100.0}
    assert {f"step_{name}_ns": value for name, value in expected.items()} == {
        name: value for name, value in found.items() if name.startswith("step_")
    }
    assert (9.0, 250.0, 7) == (found["wait_median_ns"], found["wall_ns"], len(found))


def test_rates_by_hand() -> None:
    """32,504,064 FLOP in 57.58 us are 0.5645 TFLOP/s, 2.9 % of the 19.5 TFLOP/s of an A100; all of it is possible."""
    found = implied("MLP", 32_504_064, 57_580, peak_flops_per_s=19.5e12)
    assert (0.5645, 0.0289) == (
        round((found["flops_per_s"] or 0) / 1e12, 4),
        round(found["peak_frac"] or 0, 4),
    )
    assert 1.0 == implied("a GEMM", 19_500_000_000, MS, peak_flops_per_s=19.5e12)["peak_frac"]
    expected = {
        "flops_per_s": pytest.approx(1e9, rel=1e-12),
        "peak_flops_per_s": None,
        "peak_frac": None,
    }
    assert expected == implied("a CPU", 1_000, 1_000)


@pytest.mark.parametrize(
    ("work", "ns", "peak", "message"),
    [
        # 60.1 MFLOP in the 0.16 us of the lab's table 4, on its A100, and in the 0.4258 us of its CPU
        (
            60_096_512,
            160,
            19.5e12,
            r"60\.1 MFLOP in 160 ns are 376 TFLOP/s, 1,926\.2 % of the peak",
        ),
        (60_096_512, 425.8, None, "are 141 TFLOP/s, in less time than a call takes"),
        (19_519_500_000, MS, 19.5e12, "of the peak"),  # one FLOP in a thousand too much
        *((1, dur, None, f"FLOP in {dur} ns") for dur in (0.0, -1.0, float("nan"))),
    ],
)
def test_rates_that_cannot_be_are_refused(
    work: int, ns: float, peak: float | None, message: str
) -> None:
    with pytest.raises(PerfkitError, match=message):
        implied("MLP", work, ns, peak_flops_per_s=peak)
