"""`python -m perfkit.workloads` on the CPU: times, the folders it makes, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import perfkit
from perfkit import workloads
from perfkit.analysis.flops import operators
from perfkit.cli import main as perfkit_command
from perfkit.errors import PerfkitError
from perfkit.hardware import Peaks
from perfkit.workloads import MODELS, MODES, SIZES, TRACED, Loader, Plan, flops, running
from perfkit.workloads.__main__ import main
from perfkit.workloads.baseline import Device
from perfkit.workloads.running import CpuClock, GpuClock, Times, clock, implied, measure, record, summary, timed

TRACE, TIMINGS = "rank-0.pt.trace.json.gz", "timings.json"
BATCHES = (1, 4)
# test_report_of_a_folder reports a training of the MLP; `-m matrix` runs a report of each other model.
TRAININGS = [pytest.param((m, "train"), marks=() if m == "resnet18" else pytest.mark.matrix) for m in MODELS]


@pytest.fixture(scope="module", params=[(model, mode) for model in MODELS for mode in MODES], ids="-".join)
def recorded(torch: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model's training or inference, with two batch sizes of three steps."""
    model, mode = request.param
    out = tmp_path_factory.mktemp("runs") / mode / model
    small = ["--scale", "small", "--batch", *map(str, BATCHES), "--steps", "3", "--warm-up", "1"]
    assert 0 == main([model, "--mode", mode, *small, "--record", str(out)])
    return out


def held(folder: Path) -> dict[str, Any]:
    """What the timings say."""
    content: dict[str, Any] = json.loads((folder / TIMINGS).read_text(encoding="utf-8"))
    return content


def test_folder_holds_trace_and_timings(recorded: Path) -> None:
    """On a CPU there is nothing for NVIDIA's tools, and the timings say so."""
    assert [TRACE, TIMINGS] == sorted(item.name for item in recorded.iterdir())
    said = "left out: the device is a CPU"
    assert {"nsys": said, "ncu": said, "nvidia-smi": said} == held(recorded)["captures"]


def test_folder_is_a_run(recorded: Path) -> None:
    """perfkit finds the trace, with as many steps as were recorded, and leaves the timings out."""
    run = perfkit.load(recorded)
    assert [TRACE] == [profile.path.name for profile in run.profiles]
    assert TRACED == (run.ranges["kind"] == "step").sum()


def test_timings_hold_every_batch_size(recorded: Path) -> None:
    """A row per batch size: three steps whose median lies between least and most, and the rate that follows from it."""
    content = held(recorded)
    assert list(BATCHES) == [row["batch_count"] for row in content["rows"]]
    for row in content["rows"]:
        assert 3 == row["steps_count"] == len(row["step_ns"])
        assert sorted(row["step_ns"])[1] == row["step_median_ns"]
        assert row["step_flops"] / row["step_median_ns"] * 1e9 == pytest.approx(row["flops_per_s"], rel=1e-12)
        assert row["batch_count"] * 3e9 / row["wall_ns"] == pytest.approx(row["samples_per_s"], rel=1e-12)
        assert row["wall_ns"] >= sum(row["step_ns"])


def test_timings_say_what_was_run(recorded: Path) -> None:
    """Model, device, precision, versions and units are in the file, and numbers name their unit."""
    content = held(recorded)
    assert (recorded.name, recorded.parent.name, "fp32", "cpu") == (
        *(content[name] for name in ("model", "mode", "precision")),
        content["device"]["kind"],
    )
    assert {"perfkit", "python", "torch", "cuda"} == set(content["versions"])
    suffixes = tuple(content["units"])
    assert [] == [name for name in content["rows"][0] if not name.endswith(suffixes)]


def test_trace_has_the_operations_of_the_formula(recorded: Path) -> None:
    """perfkit's own count of the trace's operators, from their shapes, is that of the recorded steps by formula.

    Fused attention computes its scores anew in the backward pass: 7 products of which the formula counts 6.
    """
    ops = perfkit.load(recorded).ops
    work = operators(ops)
    found = work.loc[work["model"].astype(str).str.contains("gemm|convolution|attention"), "flops"].sum()
    plan, batch = Plan(recorded.name, mode=recorded.parent.name, size=SIZES["small"]), BATCHES[-1]
    attention = [layer.flops for layer in flops.layers(plan, batch) if layer.name.endswith(".attention")]
    anew = sum(attention) // 2 if plan.mode == "train" else 0
    assert TRACED * (flops.step(plan, batch) + anew) == found


@pytest.mark.parametrize("recorded", TRAININGS, indirect=True, ids="-".join)
@pytest.mark.usefixtures("without_kernels")
def test_folder_reports(recorded: Path, tmp_path: Path) -> None:
    """The report says how many steps were recorded and how long they took, and counts no GPU."""
    result = CliRunner().invoke(perfkit_command, ["report", str(recorded), "--out", str(tmp_path)])
    assert 0 == result.exit_code, result.output
    figures = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["figures"]
    assert 0 < figures["step_median_ns"]["value"]
    assert [] == [name for name in figures if "busy" in name or "kernel" in name]


@pytest.mark.usefixtures("without_kernels")
def test_report_of_a_folder(torch: Any, tmp_path: Path) -> None:
    """`python -m perfkit.workloads mlp --record run` and `perfkit report run` work one after the other."""
    argv = [sys.executable, "-m", "perfkit.workloads", "mlp", "--device", "cpu", "--batch", "128", "--steps", "5"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*argv, "--record", "run"], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    assert done.stdout.endswith("perfkit report run\n")
    result = CliRunner().invoke(perfkit_command, ["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")])
    assert 0 == result.exit_code, result.output
    summary = (tmp_path / "report" / "summary.md").read_text(encoding="utf-8")
    assert "- Recorded with: PyTorch profiler" in summary
    assert "time for data" in summary


def test_inference_prints_a_table(torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --record the times are printed, a line per batch size, and nothing is written."""
    argv = ["mlp", "--mode", "inference", "--batch", "1", "8", "--steps", "3", "--warm-up", "0", "--resident"]
    assert 0 == main(argv)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["batch", "step"]
    assert ["1", "8"] == [line.split()[0] for line in lines]
    assert all(line.endswith("not known") for line in lines)


def test_commands_are_printed_without_pytorch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--print-commands runs nothing and needs neither PyTorch nor a GPU."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert 0 == main(["mlp", "--device", "cuda", "--record", "run", "--print-commands"])
    printed = capsys.readouterr().out.splitlines()
    assert workloads.lines(Plan("mlp", device="cuda"), Path("run")) == printed
    assert not Path("run").exists()


def test_without_pytorch_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the command."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert 1 == main(["mlp"])
    assert "pip install 'perfkit[torch]'" in capsys.readouterr().err


def test_without_a_gpu_cuda_is_refused(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that PyTorch does not find cannot be timed, and the CPU is not taken in its place."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PerfkitError, match=r"device: 'cuda', and PyTorch .* finds no GPU. Choose cpu"):
        measure(Plan("mlp", device="cuda"))


def test_folder_that_is_not_empty_is_refused(torch: Any, tmp_path: Path) -> None:
    """What lies in the folder stays as it is."""
    (tmp_path / "notes.txt").touch()
    with pytest.raises(PerfkitError, match=r"the folder is not empty \(notes.txt\)"):
        record(Plan("mlp", steps=1), tmp_path)
    with pytest.raises(PerfkitError, match=r"notes.txt: is no folder"):
        record(Plan("mlp", steps=1), tmp_path / "notes.txt")
    assert ["notes.txt"] == [item.name for item in tmp_path.iterdir()]


@pytest.mark.parametrize(("device", "variable"), [("cpu", "CXX"), ("cuda", "CC")])
def test_compiling_needs_a_compiler(torch: Any, monkeypatch: pytest.MonkeyPatch, device: str, variable: str) -> None:
    """The compiler that the environment names must be there, before the model is moved or compiled."""
    monkeypatch.setenv(variable, "no-such-compiler")
    with pytest.raises(PerfkitError, match=r"compile: there is no C.* compiler \(no-such-compiler\). Install one"):
        running.workload(torch, Plan("mlp", device=device, compile=True))


def test_compiled_model_is_what_is_run(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step calls what torch.compile returned; the parameters are those of the model itself."""
    seen = []

    def compiled(model: Any) -> Any:
        return lambda inputs: seen.append(inputs) or model(inputs)

    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(torch, "compile", compiled)
    measure(Plan("mlp", compile=True, batches=(2,), steps=2, warm_up=1, loader=Loader(resident=True)))
    assert 3 == len(seen)


def test_rate_above_the_peak_is_refused(torch: Any) -> None:
    """A CPU whose peak is said to be 1 kFLOP/s cannot be as fast as this one: the peak is another's."""
    plan = Plan("mlp", batches=(8,), steps=2, warm_up=0, loader=Loader(resident=True))
    table = [Peaks(running.device(plan).name, {"fp32": 1e3})]
    with pytest.raises(PerfkitError, match=r"train of mlp, batch 8, fp32, on .*% of the peak"):
        measure(plan, peaks=table)


def test_share_of_a_peak_of_ones_own(torch: Any) -> None:
    """With a peak of 1 PFLOP/s the share is the rate over it."""
    plan = Plan("mlp", batches=(8,), steps=2, warm_up=0, loader=Loader(resident=True))
    (row,) = measure(plan, peaks=[Peaks(running.device(plan).name, {"fp32": 1e15})])
    assert row["flops_per_s"] / 1e15 == pytest.approx(row["peak_frac"], rel=1e-12)


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("fp32", (8, 0), 19.5e12),
        ("tf32", (8, 0), 156e12),
        ("fp16", (8, 0), 312e12),
        ("bf16", (8, 0), 312e12),
        ("fp16", (6, 0), 78e12),
    ],
)
def test_peak_is_that_of_the_precision(name: str, capability: tuple[int, int], expected: float) -> None:
    """An A100's dense peaks; a GPU without tensor cores for FP16 is compared with its other units."""
    used = Device(None, "cuda", "NVIDIA A100 80GB PCIe", capability)
    assert expected == running.peak_flops(used, Plan("mlp", device="cuda", precision=name))


def test_precision_of_fp32_products_is_set_and_set_back() -> None:
    """FP32 turns TF32 off for convolutions too, which PyTorch would compute in it; TF32 turns both on."""
    cudnn, told = SimpleNamespace(allow_tf32=True), ["highest"]
    torch = SimpleNamespace(
        backends=SimpleNamespace(cudnn=cudnn),
        get_float32_matmul_precision=lambda: told[-1],
        set_float32_matmul_precision=told.append,
    )
    used = Device(torch, "cuda", "NVIDIA A100 80GB PCIe", (8, 0))
    for name, expected in (("fp32", ("highest", False)), ("tf32", ("high", True))):
        with running.computing(used, Plan("mlp", device="cuda", precision=name)):
            assert expected == (told[-1], cudnn.allow_tf32)
        assert ("highest", True) == (told[-1], cudnn.allow_tf32)


def test_tf32_needs_a_gpu_that_has_it() -> None:
    """A V100 has tensor cores, but none for TF32."""
    used = Device(None, "cuda", "Tesla V100-SXM2-16GB", (7, 0))
    with (
        pytest.raises(PerfkitError, match="Tesla V100-SXM2-16GB does not compute in TF32"),
        running.computing(used, Plan("mlp", device="cuda", precision="tf32")),
    ):
        pass


def test_marked_steps_have_names() -> None:
    """nsys shows each marked step as a range with its number, around what the step does."""
    seen: list[str] = []

    @contextmanager
    def named(name: str) -> Iterator[None]:
        seen.append(name)
        yield
        seen.append("end")

    torch = SimpleNamespace(cuda=SimpleNamespace(nvtx=SimpleNamespace(range=named)))
    step = running._named(torch, running.Workload(None, lambda batch: seen.append(str(batch[0]))))
    step(("a", "b"))
    step(("c", "d"))
    assert ["step 0", "a", "end", "step 1", "c", "end"] == seen


def test_batch_beyond_the_memory_is_named(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the GPU's memory is full, the message says for which batch size."""

    def full(*given: Any, **options: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(running, "_times", full)
    with pytest.raises(PerfkitError, match="batch: 4096 of mlp does not fit into the memory of"):
        measure(Plan("mlp", batches=(4096,)))


def test_wrong_arguments_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be run is told as argparse tells it."""
    with pytest.raises(SystemExit, match="2"):
        main(["mlp", "--mark-steps"])
    assert "mark-steps: marks steps for NVIDIA's tools, and the device is not 'cuda'" in capsys.readouterr().err


def test_tools_that_are_there_are_called(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture is made, or it is said why not: here nsys works, ncu fails, and nvidia-smi is absent."""
    ran = []

    def run(command: workloads.Command) -> str | None:
        ran.append(command.argv[0])
        return "==ERROR== ERR_NVGPUCTRPERM" if command.argv[0] == "ncu" else None

    monkeypatch.setattr(workloads, "run", run)
    monkeypatch.setattr(running.shutil, "which", lambda name: None if name == "nvidia-smi" else name)
    plan = Plan("mlp", device="cuda")
    made = running._captures(Device(torch, "cuda", "a GPU", (8, 0)), plan, tmp_path, gpu_metrics=False)
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
        """An event of the stream."""
        assert enable_timing
        event = SimpleNamespace(at=None, elapsed_time=lambda other: other.at - event.at)
        event.record = lambda: setattr(event, "at", self.now_ms)
        return event

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self.waits += 1


def test_cpu_times_are_those_of_the_host() -> None:
    """A step of 20 ms takes at least that, its wait of 5 ms is not part of it, and the whole holds both."""

    def slow() -> Iterator[int]:
        while True:
            time.sleep(0.005)
            yield 0

    times = timed(lambda batch: time.sleep(0.02), slow(), 3, CpuClock())
    assert (3, 3) == (len(times.step_ns), len(times.wait_ns))
    assert min(times.step_ns) >= 20 * MS
    assert min(times.wait_ns) >= 5 * MS
    assert times.wall_ns >= sum(times.step_ns) + sum(times.wait_ns)


def test_gpu_times_are_those_of_its_events() -> None:
    """Steps of 3 ms on the GPU take 3 ms though the host spends none; it waits before the first and after the last."""
    stream = Stream()

    def step(batch: int) -> None:
        stream.now_ms += batch

    times = timed(step, iter([3, 3, 4]), 3, GpuClock(stream))
    assert [3.0 * MS, 3.0 * MS, 4.0 * MS] == times.step_ns
    assert 2 == stream.waits


def test_batches_are_taken_in_order() -> None:
    """Every step gets the next batch, and no batch is taken beyond the last step."""
    seen: list[int] = []
    left = iter(range(5))
    timed(seen.append, left, 3, CpuClock())
    assert ([0, 1, 2], [3, 4]) == (seen, list(left))


def test_device_decides_the_clock() -> None:
    """A GPU is timed by events, a CPU by its clock."""
    torch = SimpleNamespace(cuda=Stream())
    assert isinstance(clock(torch, "cuda"), GpuClock)
    assert isinstance(clock(torch, "cpu"), CpuClock)


def test_summary_by_hand() -> None:
    """Of 10, 20, 30, 40, 100: median 30, quartiles 20 and 40; the median wait of 1, 2, 9, 9, 9 is 9."""
    found = summary(Times([1.0, 2.0, 9.0, 9.0, 9.0], [40.0, 10.0, 100.0, 20.0, 30.0], 250))
    assert {
        "step_median_ns": 30.0,
        "step_p25_ns": 20.0,
        "step_p75_ns": 40.0,
        "step_min_ns": 10.0,
        "step_max_ns": 100.0,
        "wait_median_ns": 9.0,
        "wall_ns": 250.0,
    } == found


def test_rate_of_the_lab() -> None:
    """32,504,064 FLOP in 57.58 us are 0.5645 TFLOP/s, 2.9 % of the 19.5 TFLOP/s of an A100."""
    found = implied("MLP", 32_504_064, 57_580, peak_flops_per_s=19.5e12)
    assert 0.5645 == round((found["flops_per_s"] or 0) / 1e12, 4)
    assert 0.0289 == round(found["peak_frac"] or 0, 4)


def test_without_a_peak_there_is_no_share() -> None:
    """1,000 FLOP in 1 us are 1e9 FLOP/s; what share that is, nobody knows."""
    expected = {"flops_per_s": pytest.approx(1e9, rel=1e-12), "peak_flops_per_s": None, "peak_frac": None}
    assert expected == implied("a CPU", 1_000, 1_000)


def test_rate_implied_above_the_peak_is_refused() -> None:
    """60.1 MFLOP in the 0.16 us of the lab's table 4 are 376 TFLOP/s, 19 times the peak of its A100."""
    with pytest.raises(PerfkitError, match=r"60\.1 MFLOP in 160 ns are 376 TFLOP/s, 1,926\.2 % of the peak"):
        implied("MLP", 60_096_512, 160, peak_flops_per_s=19.5e12)


def test_the_peak_itself_is_not_refused() -> None:
    """19.5 GFLOP in 1 ms are all of 19.5 TFLOP/s; one FLOP in a thousand more is too much."""
    assert 1.0 == implied("a GEMM", 19_500_000_000, MS, peak_flops_per_s=19.5e12)["peak_frac"]
    with pytest.raises(PerfkitError, match="of the peak"):
        implied("a GEMM", 19_519_500_000, MS, peak_flops_per_s=19.5e12)


def test_time_below_that_of_a_call_is_refused_without_a_peak() -> None:
    """The lab's CPU: 60.1 MFLOP in 0.4258 us would be 141 TFLOP/s."""
    with pytest.raises(PerfkitError, match="are 141 TFLOP/s, in less time than a call takes"):
        implied("MLP on a CPU", 60_096_512, 425.8)


@pytest.mark.parametrize("dur", [0.0, -1.0, float("nan")])
def test_no_time_is_refused(dur: float) -> None:
    """A step takes time."""
    with pytest.raises(PerfkitError, match=f"FLOP in {dur} ns"):
        implied("a step", 1, dur)
