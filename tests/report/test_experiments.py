"""The runs of an experiment for a notebook: where they come from, and what is said of them."""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from perfkit.diagnosis import verdict
from perfkit.errors import PerfkitError
from perfkit.report import experiments
from perfkit.report.notebooks import sample
from perfkit.simulate import PAIRS, write
from perfkit.workloads.experiments import EXPERIMENTS


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache."""
    monkeypatch.setenv("PERFKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A folder with one experiment as it would have been recorded on a GPU: its captures, and timings."""
    for label, path in write("batch", tmp_path / "runs" / "batch").items():
        setup = dict(zip(("before", "after"), PAIRS["batch"], strict=True))[label]
        rows = [{"batch_count": 1, "step_flops": 1}, {"batch_count": setup.batch, "step_flops": 7}]
        (path / "timings.json").write_text(json.dumps({"rows": rows}))
        (path / f"{label}.truth.json").unlink()
    return tmp_path / "runs"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_card_says_what_to_do(name: str) -> None:
    """Question, claim, and a command for each kind of machine that names the experiment; nothing is markup."""
    card = experiments.card(name, out="my <runs>")
    told = EXPERIMENTS[name]
    assert all(text in card.text for text in (told.question, told.claim, told.look))
    assert 2 == card.text.count(f"python -m perfkit.workloads experiment {name} --device ")
    assert "my &lt;runs&gt;" in card.html
    assert "<runs>" not in card.html


def test_simulated_runs_are_made_once(kept: Path) -> None:
    """They lie in the cache, nothing else does, and the second call finds them."""
    first, again = (experiments.trials("sync") for _ in range(2))
    assert ["before", "after"] == list(first)
    assert all(trial.is_simulated for trial in first.values())
    assert [trial.path for trial in first.values()] == [trial.path for trial in again.values()]
    (place,) = (kept / "experiments").iterdir()
    assert ["sync"] == [path.name for path in place.iterdir()]


def test_without_a_cache_they_are_temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is written where the reader works, with the cache switched off or on a read-only disk."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    for setting in ("off", str(tmp_path / "file")):
        monkeypatch.setenv("PERFKIT_CACHE", setting)
        assert experiments.folder("measuring").is_dir()
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


def test_another_process_was_quicker(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs are taken, and what was made in vain is removed."""

    def write_slowly(name: str, part: Path) -> None:
        (part / "mine").mkdir()
        place = part.parents[1] / name
        place.mkdir()
        (place / "theirs").mkdir()

    monkeypatch.setattr("perfkit.simulate.write", write_slowly)
    place = experiments.folder("sync")
    assert ["theirs"] == [path.name for path in place.iterdir()]
    assert [place] == list(place.parent.iterdir())


def test_recorded_runs_are_taken_and_the_others_simulated(kept: Path, recorded: Path) -> None:
    """Batch and operations are those of the last timing, which is the one that was recorded."""
    own, other = experiments.trials("batch", recorded), experiments.trials("sync", recorded)
    assert [(4, 7, False), (32, 7, False)] == [(t.batch_count, t.step_flops, t.is_simulated) for t in own.values()]
    assert [recorded / "batch" / "before", recorded / "batch" / "after"] == [trial.path for trial in own.values()]
    assert [True, True] == [trial.is_simulated for trial in other.values()]
    assert ["recorded"] * 2 == experiments.overview(own)["from"].tolist()


def test_repeats_are_a_group(kept: Path, recorded: Path) -> None:
    """Three of each: the step is the mean of their medians, and no step of one run stands for how runs differ."""
    place = recorded / "batch"
    for label in ("before", "after"):
        for repeat in (1, 2, 3):
            shutil.copytree(place / label, place / f"{label}-{repeat}")
        shutil.rmtree(place / label)
    found = experiments.trials("batch", recorded)
    rows = experiments.overview(found)
    assert [3, 3] == rows["runs_count"].tolist()
    for trial, row in zip(found.values(), rows.to_dict("records"), strict=True):
        assert row["step_ns"] == pytest.approx(statistics.median(trial.steps["dur_ns"]))
        assert row["kernel_busy_frac"] == pytest.approx(trial.every[1].busy_frac)
    told = experiments.compared(found)
    assert (3, 3) == told.repeats
    median = told.steps.iloc[0]
    assert median["ratio_low"] == median["ratio"] == median["ratio_high"], "equal runs do not differ"
    assert "between runs of one program" not in verdict.sentence(told)
    steady = sum(int(each.steps["steady"].sum()) for each in found["before"].every)
    assert steady == experiments.by_sample(found)["count"].iloc[0]


def test_single_runs_are_told(kept: Path) -> None:
    """An interval from steps within two runs knows nothing of how runs differ, and the sentence says so."""
    said = verdict.sentence(experiments.compared(experiments.trials("measuring")))
    assert "record 3 repeats of each run" in said


def test_half_an_experiment_is_refused(recorded: Path) -> None:
    """The message names the run that is missing, and how both are recorded."""
    shutil.rmtree(recorded / "batch" / "after")
    with pytest.raises(PerfkitError, match=r"batch: the run 'after' is missing.*experiment batch --device cpu --out"):
        experiments.trials("batch", recorded)


def test_a_step_is_told_once(kept: Path, recorded: Path) -> None:
    """Steps that become half as long for good count from there on, in the overview as in the comparison."""
    found = experiments.trials("batch", recorded)
    frame = found["after"].steps.copy()
    frame.loc[frame.index[: len(frame) // 2], "dur_ns"] *= 2
    last = replace(found["after"])
    vars(last)["steps"] = frame
    ledger = experiments.by_sample({"before": found["before"], "after": last}).iloc[1]
    assert last.step_ns == pytest.approx(frame["dur_ns"].iloc[len(frame) // 2 :].median())
    assert ledger["step_ns"] == pytest.approx(last.step_ns / last.batch_count, abs=1)


def test_timings_that_cannot_be_read(recorded: Path) -> None:
    """The message names the file."""
    (recorded / "batch" / "before" / "timings.json").write_text("{")
    with pytest.raises(PerfkitError, match=r"before.timings\.json: cannot be read"):
        experiments.trials("batch", recorded)


def test_overview_by_hand(kept: Path) -> None:
    """Step, sample, launches and share of the time, counted from the rows and from what is true of the run."""
    found = experiments.trials("batch")
    rows = experiments.overview(found).set_index("run")
    for label, trial in found.items():
        truth = json.loads((trial.path / f"{label}.truth.json").read_text())
        row = rows.loc[label]
        assert row["step_ns"] == pytest.approx(truth["step_ns"], rel=0.02)
        assert row["sample_ns"] * trial.batch_count == pytest.approx(row["step_ns"])
        assert row["samples_per_s"] == pytest.approx(1e9 / row["sample_ns"])
        assert row["launches_count"] == truth["kernels_count"] / truth["setup"]["steps"]
        assert row["kernel_busy_frac"] == truth["busy_ns"] / truth["span_ns"]
        assert row["flops_per_s"] == pytest.approx(1e9 * truth["step_flops"] / row["step_ns"])


def test_ledger_by_sample_by_hand(kept: Path) -> None:
    """The larger batch is slower by step, and 3.2 times as fast by sample: medians of the steps over the batch."""
    found = experiments.trials("batch")
    medians = [statistics.median(trial.steps["dur_ns"]) / trial.batch_count for trial in found.values()]
    ledger = experiments.by_sample(found)
    assert ledger["step_ns"].tolist() == pytest.approx(medians, abs=1)
    assert ["better"] == ledger["verdict"].tolist()[1:]
    assert ledger["utilisation_frac"].tolist() == [trial.busy_frac for trial in found.values()]
    assert ["worse"] * 2 == experiments.compared(found).steps["verdict"].tolist()


def test_a_run_without_a_gpu(tmp_path: Path) -> None:
    """A recording of the CPU has steps and samples; all that is of GPUs is not a number, in the ledger too."""
    run = sample().parent / "cpu_workloads" / "mlp_training"
    for label in ("before", "after"):
        shutil.copytree(run, tmp_path / "sync" / label)
    found = experiments.trials("sync", tmp_path)
    rows = experiments.overview(found)
    assert rows[["launches_count", "kernel_busy_frac"]].isna().all(axis=None)
    assert (rows["samples_per_s"] > 0).all()
    assert experiments.by_sample(found)["utilisation_frac"].isna().all()


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"rows": []}', '{"rows": [1]}', '{"rows": [{"batch_count": 0, "step_flops": 1e999}]}', "["]
)
def test_timings_of_another_kind_are_refused(recorded: Path, content: str) -> None:
    """The message names the file and what is wrong."""
    file = recorded / "batch" / "after" / "timings.json"
    file.write_text(content)
    with pytest.raises(PerfkitError, match=r"after/timings\.json: .*Record the run again\."):
        experiments.trials("batch", recorded)
