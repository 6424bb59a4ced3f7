"""Experiments: what a pair differs in, what follows from it, and the series of the notes."""

import json
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import perfkit
from make import simulate
from make.simulate import STAGES
from make.simulate.program import GPU, Maker, Setup, step
from perfkit import diagnosis, hardware
from perfkit.analysis import compare, steps, timeline
from perfkit.errors import PerfkitError
from perfkit.report.notebooks import sample
from perfkit.run import Run
from perfkit.workloads import Plan, Size, flops

# What each change must do to the step time, and the finding that it must remove; None: neither is expected.
EXPECTED = {
    "measuring": ("no difference seen", None),
    "tensor": ("better", "tensor_cores"),
    "fusion": ("better", None),
    "sync": ("better", "idle_host_code"),
    "loading": ("better", "idle_data_loading"),
    "batch": ("worse", "launch_overhead"),
    "precision": ("better", "tensor_cores"),
}
Written = Callable[[str], dict[str, Run]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The runs of an experiment, loaded; each is written once."""
    root, kept = tmp_path_factory.mktemp("experiments"), {}

    def load(name: str) -> dict[str, Run]:
        if name not in kept:
            kept[name] = {
                label: perfkit.load(path)
                for label, path in simulate.write(name, root / name).items()
            }
        return kept[name]

    return load


def truth(run: Run) -> dict[str, Any]:
    path = Path(str(run.capture["path"].iloc[0]))
    content: dict[str, Any] = json.loads(
        path.with_name(path.name.replace(".nsys.sqlite", ".truth.json")).read_text()
    )
    return content


def in_order(run: Run) -> tuple[list[int], list[int]]:
    kernels = run.kernels.sort_values("start_ns")
    return kernels["start_ns"].tolist(), kernels["dur_ns"].tolist()


@pytest.mark.parametrize("name", simulate.PAIRS)
@pytest.mark.sampled(3)
def test_the_change_does_what_it_must(name: str, written: Written) -> None:
    """The verdict on the step time; the cause is the first finding before, and none after.

    Two settings that differ would leave open which one it was.
    """
    before, after = map(asdict, simulate.PAIRS[name])
    assert [1] == [len({key for key in before if before[key] != after[key]})]
    runs = written(name)
    found = {label: steps.detect(run.ranges, run.kernels) for label, run in runs.items()}
    verdict, rule = EXPECTED[name]
    assert [verdict] * 2 == compare.steps(found["before"], found["after"])["verdict"].tolist()
    assert found["before"]["how"].unique().tolist() == found["after"]["how"].unique().tolist()
    if rule:
        rules = {
            label: [each.rule for each in diagnosis.findings(run)] for label, run in runs.items()
        }
        assert rules["before"][0] == rule
        assert rule not in rules["after"]


@pytest.mark.parametrize("name", ["sync", "batch"])
def test_truth_is_that_of_the_rows(name: str, written: Written) -> None:
    for run in written(name).values():
        told = truth(run)
        start, dur = in_order(run)
        assert all(
            later >= begin + length
            for begin, length, later in zip(start, dur, start[1:], strict=False)
        )
        assert [told["kernels_count"], told["busy_ns"]] == [len(start), sum(dur)]
        assert told["span_ns"] == start[-1] + dur[-1] - start[0]
        assert told["busy_ns"] == timeline.busy(run.kernels, run.copies)["kernel_busy_ns"].iloc[0]
        assert "no GPU ran" in told["simulated"]


@pytest.mark.parametrize("batch", [1, 16])
def test_operations_are_those_of_the_formula(batch: int) -> None:
    """The products of a step are BERT's, which another module counts from the shapes of its layers."""
    plan = Plan("bert", size=Size(layers=4))
    assert flops.step(plan, batch) == sum(kernel.flops for kernel in step(Setup(batch=batch)))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_no_kernel_is_above_a_roof(precision: str) -> None:
    sheet = hardware.peaks(GPU)
    assert sheet is not None
    for kernel in step(Setup(precision=precision)):
        assert kernel.flops <= kernel.peak_flops_per_s * kernel.dur_ns / 1e9
        assert kernel.bytes <= sheet.bandwidth() * kernel.dur_ns / 1e9


def test_a_product_by_hand() -> None:
    """A round of 108 tiles is full; one tile more needs a second round, for which all multiprocessors wait."""
    full, more = (Maker("fp32").product(128, 64 * tiles, 768, "tn") for tiles in (108, 109))
    assert full.grid_blocks == 108
    assert full.dur_ns == pytest.approx(2_000 + 1e9 * 2 * 128 * 64 * 108 * 768 / (0.9 * 19.5e12))
    assert more.dur_ns - 2_000 == pytest.approx(2 * (full.dur_ns - 2_000))


def test_the_tensor_cores_are_sampled(written: Written) -> None:
    """They idle in FP32, and are busy for the products' share of their peak in TF32."""
    runs = written("tensor")
    shares = {}
    for label, run in runs.items():
        start, _ = in_order(run)
        inside = run.samples["time_ns"].between(start[0] + 2e6, start[-1])
        shares[label] = run.samples[inside & (run.samples["metric"] == "tensor_active_frac")][
            "value"
        ].mean()
    told = truth(runs["after"])
    assert shares["before"] == 0
    assert shares["after"] == pytest.approx(
        told["step_flops"] / told["step_ns"] * 1e9 / 156e12, abs=0.01
    )


def test_series_has_the_utilisation_of_the_notes(written: Written) -> None:
    """65, 78, 87, 92 and 95 %, to half a point, in the steps and in the whole capture."""
    for label, run in written("case").items():
        kernels = len(step(STAGES[label].setup))
        start, dur = in_order(run)
        whole = sum(dur[:-kernels]) / (start[-kernels] - start[0])
        busy = timeline.busy(run.kernels, run.copies).iloc[0]
        for share in (whole, busy["kernel_busy_frac"], busy["device_busy_frac"]):
            assert share == pytest.approx(STAGES[label].utilisation_frac, abs=0.005)
    assert [0.65, 0.78, 0.87, 0.92, 0.95] == [stage.utilisation_frac for stage in STAGES.values()]


def test_captures_say_that_they_are_simulated(written: Written, tmp_path: Path) -> None:
    file, again = (
        Path(written("sync")["before"].capture["path"].iloc[0]),
        simulate.write("sync", tmp_path)["before"],
    )
    with closing(sqlite3.connect(file)) as db:
        told = dict(db.execute("SELECT name, value FROM META_DATA_CAPTURE"))
    assert "no GPU ran" in told["SIMULATED"]
    assert file.read_bytes() == (again / file.name).read_bytes()


def test_the_sample_holds_what_is_simulated(written: Written) -> None:
    made = {
        path
        for name in simulate.NAMES
        for path in (f"{name}/{label}" for label in simulate._setups(name))
    }
    (before, *_) = written("sync").values()
    file = Path(before.capture["path"].iloc[0])
    with zipfile.ZipFile(sample("experiments.zip")) as archive:
        assert made == {member.rpartition("/")[0] for member in archive.namelist()}
        assert file.read_bytes() == archive.read(f"sync/before/{file.name}")


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """A setting that has no effect or cannot be simulated, and a file in the way of a folder."""
    settings = (
        ({"precision": "fp8"}, "'fp8' is not one of"),
        ({"batch": 0}, "at least 1"),
        ({"workers": 2}, "nothing to"),
    )
    for changes, said in settings:
        with pytest.raises(ValueError, match=said):
            Setup(**changes)
    (tmp_path / "before").write_text("in the way")
    with pytest.raises(PerfkitError, match=r"before.*cannot be written.*Choose another folder"):
        simulate.write("sync", tmp_path)
