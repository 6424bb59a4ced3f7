"""Reports of DeepSpeed's Flops Profiler of every form, alone or inside a training log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from readers import deepspeed_files as files

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import deepspeed, recognise
from perfkit.tables import METRICS

REPORT = "deepspeed_flops_profiler_bert_large.txt"


def read(path: Path, lines: list[str], prefix: str = "") -> Profile:
    """The profile of a file with these lines."""
    return deepspeed.read(files.written(path / "train.log", lines, prefix))


def figures(profile: Profile) -> dict[str, float]:
    """The values of a report by metric."""
    samples = profile.table("SAMPLES")
    assert samples["metric"].is_unique
    return dict(zip(samples["metric"], samples["value"], strict=True))


def test_a_report_is_read_in_base_units(tmp_path: Path) -> None:
    """10 M parameters are 1e7, 2 ms are 2,000,000 ns, 50 TFLOPS are 5e13 operations per second."""
    profile = read(tmp_path, files.report())
    expected = {
        "world_size_count": 2,
        "batch_size_count": 8,
        "model_parameters_count": 1e7,
        "forward_flops": 1e11,
        "forward_ns": 2e6,
        "backward_ns": 4e6,
        "step_ns": 5e5,
        "iteration_ns": 6.5e6,
        "forward_flops_per_s": 5e13,
        "backward_flops_per_s": 5e13,
        "training_flops_per_s": 5e13,
        "samples_per_s": 2461.54,
    }
    assert expected == figures(profile)
    assert set(expected) <= set(METRICS)
    assert ("DeepSpeed", "") == tuple(profile.capture[["tool", "tool_version"]].iloc[0])
    assert () == profile.notes
    assert {-1} == set(profile.table("SAMPLES")["gpu"])


def test_the_oldest_report_says_the_same_metrics(tmp_path: Path) -> None:
    """Until 0.3 labels were words; LeNet-5 of the tutorial has 879.12 MFLOP in 25.7 ms, 34.2 GFLOP/s."""
    found = figures(read(tmp_path, files.report(files.OLDEST)))
    assert {
        "model_parameters_count": 61710.0,
        "forward_flops": 879.12e6,
        "forward_ns": 25.7e6,
        "forward_flops_per_s": 34.2e9,
    } == found
    assert found["forward_flops_per_s"] == pytest.approx(found["forward_flops"] / found["forward_ns"] * 1e9, rel=1e-3)


def test_operations_and_their_rate_have_one_label_in_two_cases(tmp_path: Path) -> None:
    """Reports of 2021 call operations FLOPs and rates FLOPS: the formula after the label tells them apart."""
    told = {
        "fwd FLOPs per GPU = 2 * fwd MACs per GPU": "100 G",
        "fwd latency": "2 ms",
        "fwd FLOPS per GPU = fwd FLOPs per GPU / fwd latency": "50 TFLOPS",
    }
    found = figures(read(tmp_path, files.report(told)))
    assert {"forward_flops": 1e11, "forward_ns": 2e6, "forward_flops_per_s": 5e13} == found


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("2.39 B", 2.39e9),
        ("2.39 G", 2.39e9),
        ("336.23 M", 336.23e6),
        ("61.71 k", 61710.0),
        ("61.71 K", 61710.0),
        ("7", 7.0),
    ],
)
def test_units_of_parameters(printed: str, value: float, tmp_path: Path) -> None:
    """Billions are B or G, thousands k or K."""
    assert value == figures(read(tmp_path, files.report({"params per gpu": printed})))["model_parameters_count"]


@pytest.mark.parametrize(("printed", "ns"), [("1.55 s", 1.55e9), ("2 ms", 2e6), ("34.09 us", 34090.0), ("0.5 s", 5e8)])
def test_units_of_times(printed: str, ns: float, tmp_path: Path) -> None:
    """Seconds, milliseconds and microseconds are ns, exactly."""
    assert ns == figures(read(tmp_path, files.report({"fwd latency": printed})))["forward_ns"]


def test_the_model_is_what_all_gpus_hold(tmp_path: Path) -> None:
    """With model parallelism a GPU holds a part of the model; without an engine the model is said to have 0."""
    parts = {"params per GPU": "2.14 B", "params of model = params per GPU * mp_size": "17.1 B"}
    assert 17.1e9 == figures(read(tmp_path, files.report(parts)))["model_parameters_count"]
    alone = {"params per GPU": "2.14 B", "params of model = params per GPU * mp_size": "0"}
    assert 2.14e9 == figures(read(tmp_path, files.report(alone)))["model_parameters_count"]


def test_impossible_figures_are_left_out(tmp_path: Path) -> None:
    """DeepSpeed can print negative times and rates from them: none becomes a sample, and the note names them."""
    told = {
        **files.NEW,
        "bwd latency": "-2.9601e+08 us",
        "bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency": "-7.49758e+17 uFLOPS",
        "step latency": "0",
        "samples/second": "-0.5",
    }
    profile = read(tmp_path, files.report(told))
    assert not {"backward_ns", "backward_flops_per_s", "step_ns", "samples_per_s"} & set(figures(profile))
    assert (
        "left out as impossible (0 or negative): bwd latency, "
        "bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency, step latency, samples/second",
    ) == profile.notes


def test_what_was_not_recorded_is_named(tmp_path: Path) -> None:
    """Without wall_clock_breakdown a report ends with the forward pass."""
    forward = {
        label: value for label, value in files.NEW.items() if not label.startswith(("bwd", "fwd+", "step", "iter"))
    }
    (missing,) = read(tmp_path, files.report(forward)).missing
    assert ("SAMPLES.backward_ns", '"wall_clock_breakdown": true for DeepSpeed') == (missing.table, missing.record)
    assert () == read(tmp_path, files.report()).missing


@pytest.mark.parametrize("prefix", ["", "vm-07-14: ", "[1,0]<stdout>:", "0: ", "[default0]:"])
def test_launchers_may_stand_before_lines(prefix: str, tmp_path: Path) -> None:
    """A report inside a training log has the launcher's prefix, and other lines around it."""
    path = files.written(tmp_path / "train.log", ["step 9", *files.report(), "step 11", *files.training()], prefix)
    assert deepspeed.sniff(path)
    found = deepspeed.read(path).table("SAMPLES").groupby("metric", observed=True)["value"].first()
    assert (2e6, 1000e6) == (found["forward_ns"], found["iteration_ns"])


def test_the_last_report_is_read(tmp_path: Path) -> None:
    """Of several the last is the one after warming up."""
    profile = read(tmp_path, [*files.report({"fwd latency": "9 ms"}, 1), *files.report({"fwd latency": "2 ms"}, 50)])
    assert {"forward_ns": 2e6} == figures(profile)
    assert ("2 reports of the Flops Profiler: the last one is read",) == profile.notes


def test_modules_are_not_the_model(tmp_path: Path) -> None:
    """Lines after the summary have the same words and are of modules."""
    extra = [f"{'fwd latency: ':<70}  {'99 s':<8}"]
    assert 2e6 == figures(read(tmp_path, [*files.report(), *extra]))["forward_ns"]


def test_a_cut_report_says_so(tmp_path: Path) -> None:
    """What was printed before the cut is read."""
    path = files.written(tmp_path / "a.txt", files.report())
    text = path.read_text()
    path.write_text(text[: text.index("4 ms") + 1])
    profile = deepspeed.read(path)
    assert 2e6 == figures(profile)["forward_ns"]
    assert "backward_ns" not in figures(profile)
    assert (
        "the report ends within its summary",
        "the last line is cut and left out",
    ) == tuple(sorted(profile.notes, reverse=True))


def test_a_title_alone_is_an_error(tmp_path: Path) -> None:
    """A report without a figure is nothing to load."""
    with pytest.raises(ReadError, match=r"train\.log: a title of DeepSpeed's Flops Profiler and no figure after it"):
        read(tmp_path, files.report({}))


def test_zero_bytes_are_an_error(tmp_path: Path) -> None:
    """Binary data in a log is told with its line."""
    path = files.written(tmp_path / "train.log", files.report())
    path.write_bytes(path.read_bytes().replace(b"2461.54", b"24\x0061.54"))
    with pytest.raises(ReadError, match=r"train\.log: binary data \(zero bytes\) in line 24"):
        deepspeed.read(path)


def test_files_are_claimed_by_what_they_say(tmp_path: Path) -> None:
    """A report is found at the end of a long log too; text about it is none."""
    noise = ["x" * 99] * 5000
    assert "deepspeed" == recognise(files.written(tmp_path / "a", [*noise, *files.report()]))
    assert "deepspeed" == recognise(files.written(tmp_path / "b", [*noise, *files.training()]))
    about = ["DeepSpeed Flops Profiler", "iteration 1/2 |", "elapsed time per iteration (ms): 5"]
    assert not deepspeed.sniff(files.written(tmp_path / "c", about))


def test_the_report_of_bert_is_its_truth(profiles: Path) -> None:
    """Every figure of BERT-Large on an A100 is the printed one in base units, and fits the others.

    3 x 6279.86 GFLOP in 76.67 + 108.02 ms are 102.0 TFLOP/s; 80 samples in 184.73 ms are 433.07 per second.
    """
    told: dict[str, Any] = json.loads((profiles / "golden" / "monitor" / f"{REPORT}.truth.json").read_text("utf-8"))
    pairs = {label.partition(" =")[0]: value.split() for label, value in told["pairs"].items() if "/ " not in label}
    found = figures(deepspeed.read(profiles / "monitor" / REPORT))
    power = {"M": 1e6, "G": 1e9, "T": 1e12, "ms": 1e6, "us": 1e3}  # times in ns
    labels = {
        "params per gpu": "model_parameters_count",
        "fwd flops per GPU": "forward_flops",
        "fwd latency": "forward_ns",
        "bwd latency": "backward_ns",
        "step latency": "step_ns",
        "iter latency": "iteration_ns",
    }
    for label, metric in labels.items():
        number, unit = pairs[label]
        assert found[metric] == pytest.approx(float(number) * power[unit], rel=1e-14)
    assert (1, 80, 433.07) == tuple(found[m] for m in ("world_size_count", "batch_size_count", "samples_per_s"))
    rates = [found[f"{part}_flops_per_s"] for part in ("forward", "backward", "training")]
    assert [81.9e12, 116.27e12, 102.0e12] == rates
    both = found["forward_ns"] + found["backward_ns"]
    assert rates[2] == pytest.approx(3 * found["forward_flops"] / both * 1e9, rel=1e-4)
    assert found["samples_per_s"] == pytest.approx(80 / found["iteration_ns"] * 1e9, rel=1e-4)


@pytest.mark.parametrize("value", ["2 parsecs", "two ms", "2 2 ms", "1e999 ms"])
def test_a_figure_that_is_no_number_with_a_unit_is_named(value: str, tmp_path: Path) -> None:
    """A figure that perfkit knows by its label and cannot read is left out, and the note names it."""
    path = files.written(tmp_path / "profile.txt", files.report({**files.NEW, "fwd latency": value}))
    profile = deepspeed.read(path)
    assert "left out, their value is no number with a unit: fwd latency" in profile.notes
    assert not profile.table("SAMPLES")["metric"].eq("forward_ns").any()
