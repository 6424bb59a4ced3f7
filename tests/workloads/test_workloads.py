"""Plans of workloads, the commands that record them, and `torch_profile`."""

import gzip
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import perfkit
from perfkit import workloads
from perfkit.cli import main
from perfkit.errors import PerfkitError
from perfkit.workloads import SIZES, SNIPPET, Command, Loader, Plan, Size, torch_profile
from perfkit.workloads.__main__ import _parser, _plan


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plan("lstm"), r"model: 'lstm' is not one of \['mlp', 'cnn', 'resnet18', 'bert'\]"),
        (lambda: Plan("mlp", precision="tf32"), "precision: 'tf32' is one of GPUs"),
        (lambda: Plan("mlp", batches=(8, 0)), r"batches: \[8, 0\] is no list"),
        (lambda: Plan("mlp", steps=0), "steps: 0 is below 1"),
        (
            lambda: Plan("mlp", loader=Loader(pin_memory=True)),
            "pin_memory: speeds up copies to a GPU",
        ),
        (lambda: Plan("mlp", mode="inference", read_loss=True), "read_loss: inference has no loss"),
        (lambda: Loader(persistent=True), "workers: 0, so there is nothing to prefetch"),
        (lambda: Loader(resident=True, workers=2), "resident: the batch stays on the device"),
        (lambda: Size(image=31), "image: 31 is below 32"),
        (lambda: Size(sequence=513), "sequence: 513 tokens; BERT takes 1 to 512"),
        (lambda: Size(hidden=100, heads=12), "hidden: 100 is no multiple of 12 heads"),
    ],
)
def test_what_cannot_be_run_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_plan_knows_its_warm_up_and_dimensions() -> None:
    """50 steps on a GPU, 5 on a CPU, or as many as asked; MLP and CNN have no size, ResNet its images', BERT five."""
    plans = Plan("mlp", device="cuda"), Plan("mlp"), Plan("mlp", warm_up=0)
    assert [50, 5, 0] == [plan.warming for plan in plans]
    assert [0, 0, 1, 5] == [
        len(Plan(name).dimensions) for name in ("mlp", "cnn", "resnet18", "bert")
    ]
    assert {"image": 64} == Plan("resnet18", size=Size(image=64)).dimensions


PLANS = [
    Plan("mlp"),
    Plan("cnn", mode="inference", batches=(1, 64, 128), steps=7, warm_up=0, compile=True, seed=3),
    Plan("resnet18", device="cuda", precision="tf32", read_loss=1, size=Size(image=96)),
    Plan("bert", size=SIZES["small"], loader=Loader(workers=2, prefetch=4, persistent=True)),
    Plan("mlp", device="cuda", loader=Loader(workers=1, pin_memory=True)),
    Plan("mlp", loader=Loader(resident=True), read_loss=50, traced=20),
]


def tool(folder: Path, text: str) -> tuple[str, ...]:
    """A command that runs this Python."""
    script = folder / "tool.py"
    script.write_text(text, encoding="utf-8")
    return sys.executable, str(script)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.model)
def test_arguments_give_the_plan_back(plan: Plan) -> None:
    assert plan == _plan(_parser().parse_args(workloads.arguments(plan)))


def test_nsys_waits_for_the_marked_steps() -> None:
    """The capture begins with cudaProfilerStart; the last batch size is captured; the export has the report's stem.

    Sampling counters of the GPU needs a permission, without which nsys records nothing: only if asked for.
    """
    plan = Plan("mlp", device="cuda", batches=(1, 64))
    first, export = workloads.captures(plan, Path("out"))["nsys"]
    assert {
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--output=out/mlp",
    } < set(first.argv)
    program = first.argv[first.argv.index(sys.executable) :]
    assert (
        "-m",
        "perfkit.workloads",
        "mlp",
        "--device",
        "cuda",
        "--batch",
        "64",
        "--mark-steps",
    ) == program[1:]
    assert ("--output=out/mlp.sqlite", "out/mlp.nsys-rep") == export.argv[-2:]
    asked, metrics = (
        workloads.captures(plan, Path("out"), gpu_metrics=True)["nsys"][0],
        "--gpu-metrics-devices=all",
    )
    assert (False, True) == (metrics in first.argv, metrics in asked.argv)


def test_ncu_gets_one_step_in_base_units() -> None:
    """Every kernel of one marked step is counted, and the page is printed as perfkit reads it."""
    first, page = workloads.captures(Plan("mlp", device="cuda", steps=50), Path("out"))["ncu"]
    for said in ("--profile-from-start off", "--steps 1 --mark-steps"):
        assert said in shlex.join(first.argv)
    assert (
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum,"
        in first.argv[first.argv.index("--metrics") + 1]
    )
    assert "--csv --page raw --print-units base" in shlex.join(page.argv)
    assert Path("out/mlp.raw.csv") == page.stdout == page.makes


def test_log_has_the_columns_that_perfkit_reads(tmp_path: Path) -> None:
    from perfkit.logs.nvidia_smi.fields import FIELDS

    known = {name for names in FIELDS.values() for name in names}
    asked = set(workloads.FIELDS.split(",")) - {
        "timestamp",
        "index",
        "name",
        "clocks_event_reasons.active",
    }
    assert set() == asked - known


def test_lines_are_for_a_shell() -> None:
    """A folder with a space is quoted, in all seven commands that have it; the program itself runs beside the log."""
    lines = workloads.lines(Plan("mlp", device="cuda"), Path("my run"))
    assert "mkdir -p 'my run'" == lines[0]
    assert lines[4].endswith("> 'my run/mlp.raw.csv'")
    assert lines[-3].endswith("'--filename=my run/nvidia-smi.csv' &")
    assert [*shlex.split(lines[-2])] == [
        sys.executable,
        "-m",
        "perfkit.workloads",
        "mlp",
        "--device",
        "cuda",
    ]
    assert "kill $!" == lines[-1]


def test_a_tool_is_run(tmp_path: Path) -> None:
    """What it prints is in its file; its last line says why it failed, and half a report is removed.

    A tool that ends well and made nothing is named with what is missing.
    """
    page, report = tmp_path / "a.csv", tmp_path / "a.ncu-rep"
    assert workloads.run(Command(tool(tmp_path, "print('a,b')"), page, stdout=page)) is None
    assert "a,b\n" == page.read_text(encoding="utf-8")
    text = f"open({str(report)!r}, 'w').close(); print('==PROF==')\nraise SystemExit('==ERROR== ERR_NVGPUCTRPERM')"
    assert "==ERROR== ERR_NVGPUCTRPERM" == workloads.run(Command(tool(tmp_path, text), report))
    assert not report.exists()
    said = workloads.run(Command(tool(tmp_path, ""), tmp_path / "a.sqlite"))
    assert "ended with 0 and made no a.sqlite" == said


def test_log_ends_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi, which logs until it is ended, is ended."""
    begun = tmp_path / "begun"
    text = f"import time; open({str(begun)!r}, 'w').close(); time.sleep(60)"
    monkeypatch.setattr(workloads, "log", lambda out: tool(tmp_path, text))
    with workloads.logging(tmp_path):
        while not begun.exists():
            pass
    assert begun.exists()


NAME = "rank-0.pt.trace.json.gz"
STEPS = 5
BATCH, INPUTS, HIDDEN, OUTPUTS = 16, 32, 64, 8
FLOAT = 4  # bytes


def train(torch: Any, profiler: Any, steps: int = STEPS) -> None:
    layers = torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, OUTPUTS)
    model = torch.nn.Sequential(*layers)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        model(torch.ones(BATCH, INPUTS)).square().mean().backward()
        optimiser.step()
        profiler.step()


def test_a_trace_holds_what_was_recorded(torch: Any, tmp_path: Path) -> None:
    """Of five steps one waits and one warms up: numbers 2, 3 and 4 are recorded, with the function that trains.

    Every operator has the calls and the self time that PyTorch's own key_averages gives for the same steps. PyTorch
    counts an operator whose only child has its name (aten::mul of a number calls aten::mul of a tensor) once. Its sums
    of microseconds in floating point differ by 2e-11; a nanosecond of a second is 1e-9.
    """
    with torch_profile(tmp_path / "trace") as profiler:
        train(torch, profiler)
    assert [NAME] == [file.name for file in (tmp_path / "trace").iterdir()]
    run = perfkit.load(tmp_path / "trace")
    ranges, samples = run.ranges, run.samples
    assert [f"ProfilerStep#{n}" for n in (2, 3, 4)] == ranges.loc[
        ranges["kind"] == "step", "name"
    ].tolist()
    calls = run.python_calls["name"].unique()
    assert any(name.endswith(": train") and "test_workloads.py(" in name for name in calls)
    allocated = samples[samples["metric"] == "memory_allocated_bytes"].sort_values(
        "time_ns", kind="stable"
    )
    assert {-1} == set(allocated["gpu"])
    assert BATCH * HIDDEN * FLOAT in set(allocated["value"].diff())  # the hidden layer's output
    ops = run.ops.set_index("op")
    products = ops[ops["name"] == "aten::addmm"]
    shapes = [
        f"[[{HIDDEN}],[{BATCH},{INPUTS}],[{INPUTS},{HIDDEN}],[],[]]",
        f"[[{OUTPUTS}],[{BATCH},{HIDDEN}],[{HIDDEN},{OUTPUTS}],[],[]]",
    ]
    assert shapes * 3 == products["shapes"].tolist()
    assert {"aten::linear"} == set(ops.loc[products["parent"], "name"])
    assert 6 == products["sequence"].nunique()
    assert set(products["sequence"]) == set(ops.loc[ops["name"] == "AddmmBackward0", "sequence"])
    names = ops["name"].astype(object)
    only = ops["parent"].map(ops["parent"].value_counts()) == 1
    again = only & (ops["parent"].map(names) == names)
    theirs = {e.key: e for e in profiler.key_averages() if e.key in set(names)}
    assert names[~again].value_counts().to_dict() == {name: e.count for name, e in theirs.items()}
    self_us = ops["self_ns"].groupby(names).sum() / 1000
    assert self_us.to_dict() == pytest.approx(
        {name: e.self_cpu_time_total for name, e in theirs.items()}, rel=1e-10
    )


def test_ranks_of_a_launcher_make_one_run(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of ranks 3 and 11 of 12 are read as these ranks, though they are only two."""
    monkeypatch.setenv("WORLD_SIZE", "12")
    for rank in ("11", "3"):
        monkeypatch.setenv("RANK", rank)
        with torch_profile(tmp_path, with_stack=False) as profiler:
            train(torch, profiler)
    run = perfkit.load(tmp_path)
    assert ["rank-3.pt.trace.json.gz", "rank-11.pt.trace.json.gz"] == [
        profile.path.name for profile in run.profiles
    ]
    assert [3, 11] == sorted(run.ops["rank"].unique())


def test_process_group_states_the_rank(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank of PyTorch's process group is taken, not that of the environment."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    group = torch.distributed
    group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)
    try:
        with torch_profile(tmp_path) as profiler:
            train(torch, profiler)
    finally:
        group.destroy_process_group()
    stated = json.loads(gzip.decompress((tmp_path / NAME).read_bytes()))["distributedInfo"]
    assert ("gloo", 0, 1) == (stated["backend"], stated["rank"], stated["world_size"])


def test_folder_of_a_larger_job_is_refused(torch: Any, tmp_path: Path) -> None:
    """A trace of rank 5 cannot be of this job of one rank; the folder is left as it is."""
    (tmp_path / "rank-5.pt.trace.json.gz").touch()
    with (
        pytest.raises(PerfkitError, match="holds the trace of rank 5, and this job has 1 rank"),
        torch_profile(tmp_path) as profiler,
    ):
        train(torch, profiler)
    assert ["rank-5.pt.trace.json.gz"] == [file.name for file in tmp_path.iterdir()]


@pytest.mark.parametrize(("rank", "ranks"), [("2", "2"), ("0", "")])
def test_rank_that_is_none_is_refused(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, ranks: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    if ranks:
        monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(PerfkitError, match=f"RANK: '{rank}' is no rank of WORLD_SIZE"):
        torch_profile(tmp_path).__enter__()


@pytest.mark.parametrize("steps", [0, 2])
def test_too_few_steps_are_an_error(torch: Any, tmp_path: Path, steps: int) -> None:
    """Two steps wait and warm up: a loop of no more records nothing and leaves no file."""
    message = f"nothing was recorded: step.. was called {steps} times, and the first recorded step is number 3"
    with pytest.raises(PerfkitError, match=message), torch_profile(tmp_path / "trace") as profiler:
        train(torch, profiler, steps)
    assert [] == list((tmp_path / "trace").iterdir())


def test_some_steps_are_kept_with_a_warning(torch: Any, tmp_path: Path) -> None:
    """A loop that ends after one of three active steps leaves that step, and says so."""
    with (
        pytest.warns(UserWarning, match="1 of 3 active steps"),
        torch_profile(tmp_path) as profiler,
    ):
        train(torch, profiler, 3)
    assert 2 == sum(perfkit.load(tmp_path).ops["name"] == "aten::addmm")


def test_failed_write_leaves_the_earlier_trace(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(profiler: Any, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / NAME).write_bytes(b"earlier")
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", full)
    with pytest.raises(OSError, match="No space left"), torch_profile(tmp_path) as profiler:
        train(torch, profiler)
    assert {NAME: b"earlier"} == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_what_cannot_be_recorded_is_refused(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the folder's place is found before the loop begins; PyTorch is an extra, and no folder is made."""
    for name, steps in (("wait", -1), ("warmup", -1), ("active", 0)):
        with pytest.raises(ValueError, match=f"{name}: {steps} steps"):
            torch_profile(tmp_path, **{name: steps}).__enter__()
    (tmp_path / "trace").touch()
    with pytest.raises(PerfkitError, match=r"trace: the folder cannot be made \(File exists\)"):
        torch_profile(tmp_path / "trace").__enter__()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PerfkitError, match=r"pip install 'perfkit\[torch\]'"):
        torch_profile(tmp_path / "other").__enter__()
    assert ["trace"] == [file.name for file in tmp_path.iterdir()]


def test_snippet_runs(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`perfkit record torch` prints three lines, which run as they are; the one step in them is too few."""
    result = CliRunner().invoke(main, ["record", "torch"])
    assert (0, SNIPPET, 3) == (result.exit_code, result.output, len(SNIPPET.splitlines()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PerfkitError, match="called 1 times"):
        exec(compile(SNIPPET, "snippet", "exec"), {})
