"""How NVIDIA's tools are called, with tools that are made up."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from perfkit import workloads
from perfkit.workloads import SIZES, Command, Loader, Plan, Size
from perfkit.workloads.__main__ import _parser, _plan

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
    """The tools run what the person asked for: parsing the arguments of a plan gives the plan."""
    assert plan == _plan(_parser().parse_args(workloads.arguments(plan)))


def test_nsys_waits_for_the_marked_steps() -> None:
    """The capture begins with cudaProfilerStart; the last batch size is captured; the export has the report's stem."""
    first, export = workloads.captures(Plan("mlp", device="cuda", batches=(1, 64)), Path("out"))["nsys"]
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--output=out/mlp"} < set(first.argv)
    program = first.argv[first.argv.index(sys.executable) :]
    assert ("-m", "perfkit.workloads", "mlp", "--device", "cuda", "--batch", "64", "--mark-steps") == program[1:]
    assert ("--output=out/mlp.sqlite", "out/mlp.nsys-rep") == export.argv[-2:]


def test_ncu_gets_one_step_in_base_units() -> None:
    """Every kernel of one marked step is counted, and the page is printed as perfkit reads it."""
    first, page = workloads.captures(Plan("mlp", device="cuda", steps=50), Path("out"))["ncu"]
    assert "--profile-from-start off" in shlex.join(first.argv)
    assert "--steps 1 --mark-steps" in shlex.join(first.argv)
    assert "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum," in first.argv[first.argv.index("--metrics") + 1]
    assert "--csv --page raw --print-units base" in shlex.join(page.argv)
    assert Path("out/mlp.raw.csv") == page.stdout == page.makes


def test_counters_of_the_gpu_are_asked_for_only_on_request() -> None:
    """Sampling them needs a permission, without which nsys records nothing."""
    plan = Plan("mlp", device="cuda")
    asked = [workloads.captures(plan, Path("out"), gpu_metrics=g)["nsys"][0].argv for g in (False, True)]
    assert [0, 1] == [argv.count("--gpu-metrics-devices=all") for argv in asked]


def test_log_has_the_columns_that_perfkit_reads(tmp_path: Path) -> None:
    """The fields are among those that the reader of nvidia-smi knows."""
    from perfkit.readers.nvidia_smi.fields import FIELDS

    known = {name for names in FIELDS.values() for name in names}
    asked = set(workloads.FIELDS.split(",")) - {"timestamp", "index", "name", "clocks_event_reasons.active"}
    assert set() == asked - known


def test_lines_are_for_a_shell() -> None:
    """A folder with a space is quoted, in all seven commands that have it; the program itself runs beside the log."""
    lines = workloads.lines(Plan("mlp", device="cuda"), Path("my run"))
    assert "mkdir -p 'my run'" == lines[0]
    assert lines[4].endswith("> 'my run/mlp.raw.csv'")
    assert lines[-3].endswith("'--filename=my run/nvidia-smi.csv' &")
    assert [*shlex.split(lines[-2])] == [sys.executable, "-m", "perfkit.workloads", "mlp", "--device", "cuda"]
    assert "kill $!" == lines[-1]


def test_output_goes_into_its_file(tmp_path: Path) -> None:
    """What a tool prints is what the file holds."""
    page = tmp_path / "a.csv"
    assert workloads.run(Command(tool(tmp_path, "print('a,b')"), page, stdout=page)) is None
    assert "a,b\n" == page.read_text(encoding="utf-8")


def test_failure_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    """The last line of a tool that fails is the reason, and half a report is removed."""
    report = tmp_path / "a.ncu-rep"
    text = f"open({str(report)!r}, 'w').close(); print('==PROF==')\nraise SystemExit('==ERROR== ERR_NVGPUCTRPERM')"
    assert "==ERROR== ERR_NVGPUCTRPERM" == workloads.run(Command(tool(tmp_path, text), report))
    assert not report.exists()


def test_success_without_a_file_is_a_failure(tmp_path: Path) -> None:
    """A tool that ends well and made nothing is named with what is missing."""
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
