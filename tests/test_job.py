"""What only the user knows of a run, and the figures that follow from it."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import perfkit
from perfkit import diagnosis
from perfkit.cli import main
from perfkit.errors import PerfkitError
from perfkit.job import Job, known
from perfkit.report.notebooks import answering, sample

GIVEN = {
    "parameters": 7e6,
    "tokens_per_step": 4096,
    "dtype": "fp32",
    "world_size": 2,
    "price_per_gpu_hour": 2.5,
    "hours": 100,
}


def test_what_is_given_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "perfkit.toml").write_text("[job]\nparameters = 1e9\ndtype = 'bf16'\n")
    found = known({"parameters": 7e9, "dtype": ""}, tmp_path)
    assert (
        Job(parameters=7e9, dtype="bf16")
        == found
        == known({"parameters": 7e9}, tmp_path / "run.sqlite")
    )
    assert not Job()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[job]\nprice = 1\n", r"perfkit.toml: job: 'price' is not known. Use parameters, "),
        ("[job]\nparameters = -1\n", "parameters = -1 is no number above 0"),
        ("[job]\nworld_size = 1.5\n", "world_size = 1.5 is no whole number above 0"),
        ("[job]\ndtype = 'int3'\n", "dtype 'int3' is not known. Use fp32, "),
        *(("job = 1\n", "`job` is no table"), ("[job\n", "perfkit.toml: cannot be read")),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "perfkit.toml").write_text(text)
    with pytest.raises(PerfkitError, match=said):
        known({}, tmp_path)


def test_the_figures_of_a_job_by_hand() -> None:
    """4,096 tokens a step; 6 x 7e6 FLOP a token; two A100 of 19.5e12 FLOP/s in fp32; 98.9 % idle at 2.50 an hour."""
    run = perfkit.load(sample(), job=GIVEN)
    view = perfkit.select(run)
    figures = diagnosis.figures(view)
    step, idle = figures["step_median_ns"].value / 1e9, figures["idle_frac"].value
    assert figures["job_tokens_per_s"].value == pytest.approx(4096 / step)
    assert figures["job_mfu_frac"].value == pytest.approx(4096 / step * 6 * 7e6 / (2 * 19.5e12))
    assert figures["job_idle_cost_per_h"].value == pytest.approx(2.5 * 2 * idle)
    assert figures["job_whole_cost_count"].value == 2.5 * 2 * 100
    assert figures["job_whole_idle_cost_count"].value == pytest.approx(500 * idle)
    assert figures["job_idle_cost_per_h"].text == f"{5 * idle:.2f} per hour"
    assert figures["job_tenth_cost_per_h"].value == pytest.approx(0.5)
    assert "MFU" not in " ".join(r.question for r in diagnosis.refusals(view))
    assert "1_baseline" in answering(run)
    # 7e12 parameters in a step of 14 ms are more than two A100 can do.
    view = perfkit.select(perfkit.load(sample(), job={**GIVEN, "parameters": 7e12}))
    assert "job_mfu_frac" not in diagnosis.figures(view)
    assert "is impossible" in " ".join(r.reason for r in diagnosis.refusals(view))


def test_without_a_job_the_refusal_names_the_options() -> None:
    run = perfkit.load(sample())
    view = perfkit.select(run)
    (refused,) = (r for r in diagnosis.refusals(view) if "MFU" in r.question)
    assert "give --params, --tokens-per-step, --dtype" in refused.reason
    assert "perfkit.toml" in refused.reason
    assert refused.record.startswith("perfkit report RUN --params N")
    assert [] == [id for id in diagnosis.figures(view) if id.startswith("job_")]
    assert "1_baseline" not in answering(run)


@pytest.mark.usefixtures("without_kernels")
def test_the_command_takes_a_job_and_prints_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "perfkit.report.notebooks.answering", lambda *_: ["0_executive_summary", "1_baseline"]
    )
    run = tmp_path / "run"
    shutil.copytree(sample(), run)
    (run / "perfkit.toml").write_text("[job]\nprice_per_gpu_hour = 2.5\n")
    options = [
        "--params",
        "7M",
        "--tokens-per-step",
        "4096",
        "--dtype",
        "fp32",
        "--world-size",
        "2",
    ]
    told = CliRunner().invoke(
        main, ["report", str(run), "--out", str(tmp_path / "report"), *options]
    )
    assert 0 == told.exit_code, told.output
    lines = told.stdout.splitlines()
    assert lines[0] == "Simulated, not measured:"
    assert lines[1].startswith("The A100 was idle 98.5 % of the time")
    assert 1 == sum(line.startswith("   Do first: ") for line in lines)
    assert str(tmp_path / "report" / "index.html") == lines[-1]
    assert "report: 1 of " in told.stderr
    assert " left)" in told.stderr
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "Cost of idle time" in page
    assert "What the job comes to" in (tmp_path / "report" / "1_baseline.html").read_text(
        encoding="utf-8"
    )
