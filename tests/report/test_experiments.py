"""The runs of an experiment for a notebook: where they come from, and what is said of them."""

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from make.simulate import PAIRS, write
from perfkit.diagnosis import verdict
from perfkit.errors import PerfkitError
from perfkit.report import experiments
from perfkit.report.notebooks import sample
from perfkit.workloads.experiments import EXPERIMENTS


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
    card = experiments.card(name, out="my <runs>")
    told = EXPERIMENTS[name]
    assert all(text in card.text for text in (told.question, told.claim, told.look))
    assert 2 == card.text.count(f"python -m perfkit.workloads experiment {name} --device ")
    assert "my &lt;runs&gt;" in card.html
    assert "<runs>" not in card.html


def test_simulated_runs_are_made_once(cache: Path) -> None:
    first, again = (experiments.trials("sync") for _ in range(2))
    assert ["before", "after"] == list(first)
    assert all(trial.is_simulated for trial in first.values())
    assert [trial.path for trial in first.values()] == [trial.path for trial in again.values()]
    (place,) = (cache / "experiments").iterdir()
    assert ["sync"] == [path.name for path in place.iterdir()]
    said = verdict.sentence(experiments.compared(experiments.trials("measuring")))
    assert "record 3 repeats of each" in said


def test_without_a_cache_they_are_temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    for setting in ("off", str(tmp_path / "file")):
        monkeypatch.setenv("PERFKIT_CACHE", setting)
        assert experiments.folder("measuring").is_dir()
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


def test_another_process_was_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack_slowly(name: str, part: Path) -> None:
        (part / "mine").mkdir()
        place = part.parents[1] / name
        place.mkdir()
        (place / "theirs").mkdir()

    monkeypatch.setattr(experiments, "_unpack", unpack_slowly)
    place = experiments.folder("sync")
    assert ["theirs"] == [path.name for path in place.iterdir()]
    assert [place] == list(place.parent.iterdir())


def test_recorded_runs_are_taken_and_the_others_simulated(recorded: Path) -> None:
    own, other = experiments.trials("batch", recorded), experiments.trials("sync", recorded)
    assert [(4, 7, False), (32, 7, False)] == [
        (t.batch_count, t.step_flops, t.is_simulated) for t in own.values()
    ]
    assert [recorded / "batch" / "before", recorded / "batch" / "after"] == [
        trial.path for trial in own.values()
    ]
    assert [True, True] == [trial.is_simulated for trial in other.values()]
    assert ["recorded"] * 2 == experiments.overview(own)["from"].tolist()
    # Steps that become half as long for good count from there on, in the overview as in the comparison.
    frame = own["after"].steps.copy()
    frame.loc[frame.index[: len(frame) // 2], "dur_ns"] *= 2
    last = replace(own["after"])
    vars(last)["steps"] = frame
    ledger = experiments.by_sample({"before": own["before"], "after": last}).iloc[1]
    assert last.step_ns == pytest.approx(frame["dur_ns"].iloc[len(frame) // 2 :].median())
    assert ledger["step_ns"] == pytest.approx(last.step_ns / last.batch_count, abs=1)


def test_repeats_are_a_group(recorded: Path) -> None:
    """Three of each: the step is the mean of their medians, and no step of one run stands for how runs differ."""
    place = recorded / "batch"
    for label in ("before", "after"):
        for repeat in (2, 3):
            shutil.copytree(place / label, place / f"{label}-{repeat}")
        (place / label).rename(place / f"{label}-1")
    found = experiments.trials("batch", recorded)
    rows = experiments.overview(found)
    assert [3, 3] == rows["runs_count"].tolist()
    for trial, row in zip(found.values(), rows.to_dict("records"), strict=True):
        assert row["step_ns"] == pytest.approx(statistics.median(trial.steps["dur_ns"]))
        assert row["kernel_busy_frac"] == pytest.approx(trial.every[1].busy_frac)
    told = experiments.compared(found)
    assert (3, 3) == told.repeats
    median = told.steps.iloc[0]
    assert median["ratio_low"] == median["ratio"] == median["ratio_high"], (
        "equal runs do not differ"
    )
    assert "between runs of one program" not in verdict.sentence(told)
    steady = sum(int(each.steps["steady"].sum()) for each in found["before"].every)
    assert steady == experiments.by_sample(found)["count"].iloc[0]


def test_overview_and_ledger_by_hand() -> None:
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
    # The larger batch is slower by step, and 3.2 times as fast by sample: medians of the steps over the batch.
    medians = [
        statistics.median(trial.steps["dur_ns"]) / trial.batch_count for trial in found.values()
    ]
    ledger = experiments.by_sample(found)
    assert ledger["step_ns"].tolist() == pytest.approx(medians, abs=1)
    assert ["better"] == ledger["verdict"].tolist()[1:]
    assert ledger["utilisation_frac"].tolist() == [trial.busy_frac for trial in found.values()]
    assert ["worse"] * 2 == experiments.compared(found).steps["verdict"].tolist()


def test_a_run_without_a_gpu(tmp_path: Path) -> None:
    run = sample().parent / "cpu_workloads" / "mlp_training"
    for label in ("before", "after"):
        shutil.copytree(run, tmp_path / "sync" / label)
    found = experiments.trials("sync", tmp_path)
    rows = experiments.overview(found)
    assert rows[["launches_count", "kernel_busy_frac"]].isna().all(axis=None)
    assert (rows["samples_per_s"] > 0).all()
    assert experiments.by_sample(found)["utilisation_frac"].isna().all()


def test_what_is_no_recorded_experiment_is_refused(recorded: Path) -> None:
    file = recorded / "batch" / "after" / "timings.json"
    rows = ("", "1", '{"batch_count": 0, "step_flops": 1e999}')
    for content in ("{", "[", "[]", "{}", *(f'{{"rows": [{row}]}}' for row in rows)):
        file.write_text(content)
        with pytest.raises(PerfkitError, match=r"after/timings\.json: .*Record the run again\."):
            experiments.trials("batch", recorded)
    shutil.rmtree(file.parent)
    with pytest.raises(
        PerfkitError,
        match=r"batch: the run 'after' is missing.*experiment batch --device cpu --out",
    ):
        experiments.trials("batch", recorded)
