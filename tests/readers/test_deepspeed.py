"""Reports of DeepSpeed's Flops Profiler, and the iteration lines of Megatron."""

import re
from pathlib import Path
from statistics import median

import pandas as pd
import pytest
from readers import deepspeed_files as files
from readers.nccl_files import written
from real import truth_of

from perfkit.analysis import efficiency
from perfkit.errors import ReadError
from perfkit.logs import deepspeed
from perfkit.profile import Profile
from perfkit.readers import recognise
from perfkit.tables import METRICS

REPORT = "deepspeed_flops_profiler_bert_large.txt"


def read(path: Path, lines: list[str], prefix: str = "") -> Profile:
    return deepspeed.read(written(path / "train.log", lines, prefix))


def figures(profile: Profile) -> dict[str, float]:
    samples = profile.table("SAMPLES")
    assert samples["metric"].is_unique
    return dict(zip(samples["metric"], samples["value"], strict=True))


def reported(path: Path, **told: str) -> dict[str, float]:
    """Those of a report with these labels, `_` for a blank in them."""
    return figures(
        read(path, files.report({label.replace("_", " "): value for label, value in told.items()}))
    )


def test_reports_are_read_in_base_units(tmp_path: Path) -> None:
    profile = read(tmp_path, files.report())
    expected = {
        "world_size_count": 2,
        "batch_size_count": 8,
        "model_parameters_count": 1e7,
        "forward_flops": 1e11,
    }
    expected |= {
        "forward_ns": 2e6,
        "backward_ns": 4e6,
        "step_ns": 5e5,
        "iteration_ns": 6.5e6,
        "samples_per_s": 2461.54,
    }
    expected |= {f"{part}_flops_per_s": 5e13 for part in ("forward", "backward", "training")}
    assert expected == figures(profile)
    assert set(expected) <= set(METRICS)
    assert ("DeepSpeed", "") == tuple(profile.capture[["tool", "tool_version"]].iloc[0])
    assert ((), ()) == (profile.notes, profile.missing)
    assert {-1} == set(profile.table("SAMPLES")["gpu"])
    # Until 0.3 labels were words; LeNet-5 of the tutorial has 879.12 MFLOP in 25.7 ms, 34.2 GFLOP/s.
    oldest = {"model_parameters_count": 61710.0, "forward_flops": 879.12e6, "forward_ns": 25.7e6}
    found = figures(read(tmp_path, files.report(files.OLDEST)))
    assert {**oldest, "forward_flops_per_s": 34.2e9} == found
    assert found["forward_flops_per_s"] == pytest.approx(
        found["forward_flops"] / found["forward_ns"] * 1e9, rel=1e-3
    )
    # Reports of 2021 call operations FLOPs and rates FLOPS: the formula after the label tells them apart.
    told = {"fwd FLOPs per GPU = 2 * fwd MACs per GPU": "100 G", "fwd latency": "2 ms"}
    told["fwd FLOPS per GPU = fwd FLOPs per GPU / fwd latency"] = "50 TFLOPS"
    assert {"forward_flops": 1e11, "forward_ns": 2e6, "forward_flops_per_s": 5e13} == reported(
        tmp_path, **told
    )
    numbers = {
        "2.39 B": 2.39e9,
        "2.39 G": 2.39e9,
        "61.71 k": 61710.0,
        "336.23 M": 336.23e6,
        "7": 7.0,
    }
    for printed, value in numbers.items():
        assert {"model_parameters_count": value} == reported(tmp_path, params_per_gpu=printed)
    for printed, ns in (("1.55 s", 1.55e9), ("2 ms", 2e6), ("34.09 us", 34090.0), ("0.5 s", 5e8)):
        assert {"forward_ns": ns} == reported(tmp_path, fwd_latency=printed)
    # With model parallelism a GPU holds a part of the model; without an engine the model is said to have 0.
    for model, value in (("17.1 B", 17.1e9), ("0", 2.14e9)):
        parts = {"params per GPU": "2.14 B", "params of model = params per GPU * mp_size": model}
        assert value == figures(read(tmp_path, files.report(parts)))["model_parameters_count"]


def test_which_report_is_read_and_how_much_of_it(tmp_path: Path) -> None:
    # Of several the last is the one after warming up.
    profile = read(
        tmp_path,
        [*files.report({"fwd latency": "9 ms"}, 1), *files.report({"fwd latency": "2 ms"}, 50)],
    )
    assert {"forward_ns": 2e6} == figures(profile)
    assert ("2 reports of the Flops Profiler: the last one is read",) == profile.notes
    # Lines after the summary have the same words and are of modules.
    assert (
        2e6
        == figures(read(tmp_path, [*files.report(), f"{'fwd latency: ':<70}  {'99 s':<8}"]))[
            "forward_ns"
        ]
    )
    path = written(tmp_path / "a.txt", files.report())
    text = path.read_text()
    path.write_text(text[: text.index("4 ms")])
    assert "the report ends within its summary" in deepspeed.read(path).notes
    path.write_text(text.replace("2461.54", "24\x0061.54"))
    with pytest.raises(ReadError, match=r"a\.txt: binary data \(zero bytes\) in line 24"):
        deepspeed.read(path)
    with pytest.raises(
        ReadError, match=r"train\.log: a title of DeepSpeed's Flops Profiler and no figure after it"
    ):
        read(tmp_path, files.report({}))
    for prefix in ["", "vm-07-14: ", "[1,0]<stdout>:", "0: ", "[default0]:"]:
        path = written(
            tmp_path / "train.log",
            ["step 9", *files.report(), "step 11", *files.training()],
            prefix,
        )
        assert deepspeed.sniff(path)
        found = (
            deepspeed.read(path).table("SAMPLES").groupby("metric", observed=True)["value"].first()
        )
        assert (2e6, 1000e6) == (found["forward_ns"], found["iteration_ns"])
    noise = ["x" * 99] * 5000
    for name, lines in (("a", files.report()), ("b", files.training())):
        assert "deepspeed" == recognise(written(tmp_path / name, [*noise, *lines]))
    about = ["DeepSpeed Flops Profiler", "iteration 1/2 |", "elapsed time per iteration (ms): 5"]
    assert not deepspeed.sniff(written(tmp_path / "c", about))
    # DeepSpeed can print negative times and rates from them: none becomes a sample, and the note names them.
    rate = "bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency"
    told = {
        "bwd latency": "-2.9601e+08 us",
        rate: "-7.49758e+17 uFLOPS",
        "step latency": "0",
        "samples/second": "-0.5",
    }
    profile = read(tmp_path, files.report({**files.NEW, **told}))
    assert not {"backward_ns", "backward_flops_per_s", "step_ns", "samples_per_s"} & set(
        figures(profile)
    )
    assert (f"left out as impossible (0 or negative): {', '.join(told)}",) == profile.notes
    # Without wall_clock_breakdown a report ends with the forward pass.
    later = ("bwd", "fwd+", "step", "iter")
    forward = {label: value for label, value in files.NEW.items() if not label.startswith(later)}
    (missing,) = read(tmp_path, files.report(forward)).missing
    assert ("SAMPLES.backward_ns", '"wall_clock_breakdown": true for DeepSpeed') == (
        missing.table,
        missing.record,
    )
    for value in ["2 parsecs", "1e999 ms"]:
        profile = read(tmp_path, files.report({**files.NEW, "fwd latency": value}))
        assert "left out, their value is no number with a unit: fwd latency" in profile.notes
        assert "forward_ns" not in figures(profile)


LABELS = {
    "params per gpu": "model_parameters_count",
    "fwd flops per GPU": "forward_flops",
    "fwd latency": "forward_ns",
}
LABELS |= {"bwd latency": "backward_ns", "step latency": "step_ns", "iter latency": "iteration_ns"}


def test_bert_and_megatron_are_their_truth(profiles: Path) -> None:
    # 3 x 6279.86 GFLOP in 76.67 + 108.02 ms are 102.0 TFLOP/s; 80 samples in 184.73 ms are 433.07 per second.
    told = truth_of(profiles, "monitor", REPORT)
    pairs = {
        label.partition(" =")[0]: value.split()
        for label, value in told["pairs"].items()
        if "/ " not in label
    }
    found = figures(deepspeed.read(profiles / "monitor" / REPORT))
    power = {"M": 1e6, "G": 1e9, "T": 1e12, "ms": 1e6, "us": 1e3}  # times in ns
    for label, metric in LABELS.items():
        number, unit = pairs[label]
        assert found[metric] == pytest.approx(float(number) * power[unit], rel=1e-14)
    assert (1, 80, 433.07) == tuple(
        found[m] for m in ("world_size_count", "batch_size_count", "samples_per_s")
    )
    rates = [found[f"{part}_flops_per_s"] for part in ("forward", "backward", "training")]
    assert [81.9e12, 116.27e12, 102.0e12] == rates
    both = found["forward_ns"] + found["backward_ns"]
    assert rates[2] == pytest.approx(3 * found["forward_flops"] / both * 1e9, rel=1e-4)
    assert found["samples_per_s"] == pytest.approx(80 / found["iteration_ns"] * 1e9, rel=1e-4)
    told = truth_of(profiles, "monitor", MEGATRON)
    profile = deepspeed.read(profiles / "monitor" / MEGATRON)
    samples = profile.table("SAMPLES")
    units = {"iteration_ns": ("ms_per_iteration", 1e6), "samples_per_s": ("samples_per_second", 1)}
    for metric, (key, unit) in {**units, "training_flops_per_s": ("tflops", 1e12)}.items():
        values = samples[samples["metric"] == metric]["value"] / unit
        stated = pd.Series(told[key])
        assert told["iterations"] == len(values) == stated["n"]
        assert values.mean() == pytest.approx(stated["mean"], rel=1e-12)
        assert (values.min(), values.max()) == pytest.approx(
            (stated["min"], stated["max"]), rel=1e-12
        )
    assert [(0, 16.0)] == series(profile, "world_size_count")
    seconds = 1e-9 * samples[samples["metric"] == "iteration_ns"]["value"].to_numpy()
    tokens = samples[samples["metric"] == "tokens_per_s"]["value"].to_numpy()
    assert (tokens * seconds) == pytest.approx(
        [2048 * 2048] * 5, rel=1e-4
    )  # the global batch, from rounded rates


@pytest.mark.parametrize("name", [REPORT, "deepspeed_flops_profiler_megatron_gpt.txt"])
def test_modules_are_those_of_the_aggregated_profile(name: str, profiles: Path) -> None:
    """The same file lists the longest classes by depth; below four it leaves layers out."""
    text = (profiles / "monitor" / name).read_text("utf-8")
    modules = deepspeed.read(profiles / "monitor" / name).table("MODULES")
    depth = modules["name"].map(lambda path: path.count(".") + (path != ""))
    unit = {"s": 1e9, "ms": 1e6, "us": 1e3}
    seen = 0
    for at, listed in re.findall(r"depth (\d):\n.*\n.*\n +fwd latency - (.*)", text)[:4]:
        for kind, value, of in re.findall(r"'(\w+)': '([\d.]+) (\w+)'", listed):
            here = modules[(depth == int(at)) & (modules["kind"] == kind)]
            if len(here):  # BERT's report leaves two branches out
                assert here["forward_ns"].sum() == pytest.approx(float(value) * unit[of])
                seen += 1
    assert seen == 4
    assert [-1] == modules.loc[modules["name"] == "", "parent"].tolist()


def test_modules_in_the_format_of_later_versions(tmp_path: Path) -> None:
    """Figures stand after "=" and behind a launcher's prefix; the classes' own times add up to the forward pass."""
    tree = [
        "GPTModel(",
        "  2.39 B = 100% Params, 55.48 TMACs = 100% MACs, 1.17 s = 100% latency, 95.06 TFLOPS",
        "  (layers): ModuleList(",
        "    (0): Layer(1.2 B = 50% Params, 20 TMACs = 36% MACs, 400 ms = 34% latency, 100 TFLOPS, bias=True)",
        "    (1): Layer(1.2 B = 50% Params, 0 MACs = 0% MACs, 500 us = 0% latency, 0 FLOPS)",
        "    (2): Broken(1.2 B = 50% Params, many MACs = 0% MACs, 500 us = 0% latency, 0 FLOPS)",
        *("  )", ")"),
    ]
    modules = read(tmp_path, [*files.report(), *tree], "worker-3: ").table("MODULES")
    # The list and the broken module have no figures, and no row.
    assert [["", -1], ["layers.0", 0], ["layers.1", 0]] == modules[
        ["name", "parent"]
    ].to_numpy().tolist()
    assert [2.39e9, 1.2e9, 1.2e9] == modules["parameters_count"].tolist()
    assert [110.96e12, 40e12, 0] == modules["forward_flops"].tolist()
    own = efficiency.modules(modules)
    assert [["GPTModel", 769_500_000], ["Layer", 400_500_000]] == own[
        ["kind", "self_ns"]
    ].to_numpy().tolist()
    assert 1 == pytest.approx(own["share_frac"].sum())


TREE = [
    "Net(",
    "  10 M, 100.00% Params, 50 GMACs, 100.00% MACs, 2 ms, 100.00% latency, 50 TFLOPS, ",
    "  (layers): ModuleList(",
    "    (0): Linear(5 M, 50.00% Params, 25 GMACs, 50.00% MACs, 1 ms, 50.00% latency, 50 TFLOPS, )",
    "    (1): Linear(5 M, 50.00% Params, 25 GMACs, 50.00% MACs, 1 ms, 50.00% latency, 50 TFLOPS, )",
    *("  )", ")"),
]


@pytest.mark.parametrize(
    "changed",
    [
        [line for text in TREE for line in (text, "")],
        [line.replace("  ", "\t") for line in TREE],
        [line.replace("% ", "%\t").replace(", ", ",\t") for line in TREE],
    ],
    ids=["blank lines", "tabs before", "tabs between"],
)
def test_blanks_change_nothing_in_the_modules(changed: list[str], tmp_path: Path) -> None:
    plain = read(tmp_path, [*files.report(), *TREE]).table("MODULES")
    modules = read(tmp_path, [*files.report(), *changed], "rank0: ").table("MODULES")
    assert ["", "layers.0", "layers.1"] == modules["name"].tolist()
    pd.testing.assert_frame_equal(plain, modules)


def test_tabs_change_nothing_in_the_figures(tmp_path: Path) -> None:
    head, title, *lines = files.report()
    changed = [head, title, *(re.sub(" {2,}", "\t", line) for line in lines)]
    assert figures(read(tmp_path, files.report())) == figures(read(tmp_path, changed))


@pytest.mark.parametrize("cut", [4, 8, 20, 40, 90])
def test_a_torn_line_of_a_module_is_told(cut: int, tmp_path: Path) -> None:
    torn = [*TREE[:3], TREE[3][:cut], TREE[3][cut:], *TREE[4:]]
    profile = read(tmp_path, [*files.report(), *torn])
    lost = 3 - len(profile.table("MODULES"))
    told = [note for note in profile.notes if "modules in lines that are not whole" in note]
    assert (lost, len(told)) in ((1, 1), (0, 0))


def test_the_line_of_a_torn_module_is_named(tmp_path: Path) -> None:
    torn = [*files.report(), *TREE[:3], TREE[3][:40], TREE[3][40:], *TREE[4:]]
    told = "figures of modules in lines that are not whole are left out (2 lines, first line 33)"
    assert told in read(tmp_path, torn).notes
    assert TREE[3][:40] == torn[32]


def test_the_last_line_of_a_training_needs_no_line_break(tmp_path: Path) -> None:
    path = written(tmp_path / "train.log", files.training()[:-1])
    plain = deepspeed.read(path)
    path.write_text(path.read_text().removesuffix("\n"))
    profile = deepspeed.read(path)
    pd.testing.assert_frame_equal(plain.table("SAMPLES"), profile.table("SAMPLES"))
    assert plain.notes == profile.notes


MEGATRON = "superbench__megatron_deepspeed.log"
SECOND = 10**9


def series(profile: Profile, metric: str) -> list[tuple[int, float]]:
    samples = profile.table("SAMPLES")
    rows = samples[samples["metric"] == metric]
    return list(zip(rows["time_ns"], rows["value"], strict=True))


def test_iterations_and_their_times(tmp_path: Path) -> None:
    profile = read(tmp_path, files.training())
    at = [0, SECOND // 2, SECOND * 3 // 4]
    for metric, expected in {
        "iteration_ns": [1e9, 5e8, 2.5e8],
        "samples_per_s": [16.0, 32.0, 64.0],
        "tokens_per_s": [16384.0, 32768.0, 65536.0],  # 1024 a sample
        "training_flops_per_s": [1e14, 2e14, 4e14],
    }.items():
        assert list(zip(at, expected, strict=True)) == series(profile, metric)
    assert [(0, 4.0)] == series(profile, "world_size_count")
    assert ("Megatron", at[-1]) == tuple(profile.capture[["tool", "dur_ns"]].iloc[0])
    assert profile.capture["t0_unix_ns"].isna().all()
    # Lines of Megatron-LM have no samples per second: 16 in 0.5 s are 32; tokens from the settings; rates are per GPU.
    settings = ["  seq_length ...................................... 4096"]
    lines = [files.timed(n, 500.0, **{"throughput_per_GPU_(TFLOP/s/GPU)": 300.1}) for n in (10, 20)]
    profile = read(tmp_path, [*settings, *lines])
    assert [(0, 32.0), (5 * SECOND, 32.0)] == series(profile, "samples_per_s")
    assert [32.0 * 4096] * 2 == [value for _, value in series(profile, "tokens_per_s")]
    assert [300.1e12] * 2 == [value for _, value in series(profile, "training_flops_per_s")]
    stamps = (
        "[2025-01-31 12:00:00]",
        "[2025-01-31 12:00:07.5]",
    )  # a checkpoint may have been written in between
    lines = [f" {stamp}{files.timed(n, 500.0)}" for n, stamp in enumerate(stamps)]
    profile = read(tmp_path, lines)
    assert [0, 7_500_000_000] == [time for time, _ in series(profile, "iteration_ns")]
    assert 1_738_324_800 * SECOND == profile.capture["t0_unix_ns"].item()
    assert "its time stamps are local time without a zone, taken as UTC" in profile.notes

    def times(*lines: str) -> list[int]:
        return [time for time, _ in series(read(tmp_path, [*lines]), "iteration_ns")]

    # What several ranks print alike is one iteration; a restart begins again and does not go back in time.
    twice = [
        files.timed(1, 500.0),
        files.timed(1, 500.0),
        files.timed(2, 500.0),
        files.timed(1, 400.0),
    ]
    assert [0, SECOND // 2, SECOND * 9 // 10] == times(*twice)
    for ms in ("0.0", "1e99", "nan"):  # a time that no iteration takes is not read
        lines = [
            files.iteration(1, **{"elapsed_time_per_iteration_(ms)": ms}),
            files.timed(2, 500.0),
        ]
        assert [(0, 5e8)] == series(read(tmp_path, lines), "iteration_ns")
    for wrong in ["1970-01-01 00:00:05", "2025-13-41 00:00:00"]:
        stamps = ("2025-01-31 12:00:00", wrong, "2025-01-31 12:00:09")
        profile = read(
            tmp_path, [f" [{stamp}]{files.timed(n, 500.0)}" for n, stamp in enumerate(stamps, 98)]
        )
        assert [0, SECOND // 2, SECOND] == [time for time, _ in series(profile, "iteration_ns")]
        assert profile.capture["t0_unix_ns"].isna().all()
        note = "time stamps that cannot be (1, first in line 2): times are the sums of the iterations instead"
        assert note in profile.notes


def test_what_a_training_lacks_is_noted(tmp_path: Path) -> None:
    def notes(*numbers: int, last: int = 100) -> tuple[str, ...]:
        return read(
            tmp_path, [files.timed(n, 500.0).replace("100 |", f"{last} |", 1) for n in numbers]
        ).notes

    assert "the log ends at iteration 2 of 100" in notes(1, 2)
    assert ((), ()) == (notes(80, 90, 100), notes(80, 90, 100, last=105))  # printed every 10th
    missing = "lines of iterations are missing (2, first between 20 and 50, line 3)"
    assert (missing,) == notes(10, 20, *range(50, 101, 10))
    # No time, a time of no length, or iteration 2 of 1: the line is left out, and the note names it.
    for old, new in [
        *(("500.0", "1e-9"), ("500.0", "none"), ("elapsed time per iteration", "elapsed t")),
        *(("/     100", "/       1"), (" iteration ", " itera")),
    ]:
        wrong = files.timed(2, 500.0).replace(old, new, 1)
        profile = read(
            tmp_path, ["training ...", files.timed(1, 500.0), wrong, files.timed(3, 500.0)]
        )
        assert [5e8, 5e8] == [value for _, value in series(profile, "iteration_ns")]
        expected = "iteration lines that are not whole, or whose numbers cannot be, are left out (1, first in line 3)"
        assert expected in profile.notes
    path = written(
        tmp_path / "train.log", ["a bar\b\b\x1b[0m", "X", *files.training()]
    )  # of progress
    path.write_bytes(path.read_bytes().replace(b"X\n", b"\xff\x10\xfe\n"))
    assert "lines hold bytes that are no text (1, first in line 2)" in deepspeed.read(path).notes


PRIMUS = "reports/primus_log/primus_log_plain.txt"
PRIMUS_LINE = (
    "[20251202 06:50:20][rank-7/8][INFO ] : iteration 1/ 2 | consumed samples: 128 "
    "| elapsed time per iteration (ms): 2000.0/2100.0 "
    "| hip mem usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09% "
    "| throughput per GPU (TFLOP/s/GPU): 580.3/573.6 | tokens per GPU (tokens/s/GPU): 10000.0/9903.7 "
    "| global batch size: 128 |"
)


def test_a_line_of_primus_tells_the_memory_of_a_gpu(tmp_path: Path) -> None:
    profile = read(tmp_path, [PRIMUS_LINE])
    assert [(0, 153.81e9)] == series(profile, "memory_used_bytes")
    assert [(0, 255.98e9)] == series(profile, "memory_total_bytes")


def test_a_line_of_primus_tells_the_tokens_of_all_its_ranks(tmp_path: Path) -> None:
    assert [(0, 80_000.0)] == series(read(tmp_path, [PRIMUS_LINE]), "tokens_per_s")


def test_tokens_per_gpu_of_an_unknown_number_of_gpus_are_left_out(tmp_path: Path) -> None:
    assert [] == series(read(tmp_path, [PRIMUS_LINE.replace("[rank-7/8]", "")]), "tokens_per_s")


def test_the_lines_of_a_real_log_of_primus_tell_memory_and_tokens(profiles: Path) -> None:
    profile = deepspeed.read(profiles / PRIMUS)
    assert {153.81e9} == {value for _, value in series(profile, "memory_used_bytes")}
    tokens = [value / 8 for _, value in series(profile, "tokens_per_s")]
    assert median(tokens) == pytest.approx(10_005, rel=1e-3)
