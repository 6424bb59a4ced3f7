"""MFU and HFU, verdicts on them, and those of real logs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sampled import samples, together

import perfkit
from perfkit import hardware
from perfkit.analysis.efficiency import (
    credible,
    flops_per_token,
    hfu,
    implied_peak_ratio,
    mfu,
    reported_mfu,
    samples_per_s,
    tokens_per_s,
    verdict,
)
from perfkit.errors import PerfkitError
from perfkit.hardware import Peaks

H100 = Peaks("H100", {"bf16_tensor": 989e12})
A100 = Peaks("A100", {"bf16_tensor": 312e12, "fp16_tensor": 312e12, "fp32": 19.5e12})
RUN = {"flops_per_token": 6 * 70e9, "gpus": 1, "peaks": H100, "precision": "bf16_tensor"}
GUIDE_70B = {"parameters": 70e9, "layers": 80, "heads": 64, "head_size": 128, "sequence": 4096}


def test_the_attention_adds_8_percent_to_70e9_parameters() -> None:
    """12 * 80 * 64 * 128 * 4096 = 3.2212e10 FLOP per token, 7.67 % of 6 * 70e9."""
    attention = flops_per_token(**GUIDE_70B) - flops_per_token(parameters=70e9)
    assert attention == 32_212_254_720
    assert attention / 420e9 == pytest.approx(0.0767, abs=5e-5)


def test_samples_and_tokens_per_second() -> None:
    """832,571 samples in 6283.2402 s are 132.51 per second; 256 samples of 4096 tokens in 2.5 s 419,430.4 tokens."""
    assert samples_per_s(global_batch=832_571, step_ns=6283.2402e9) == pytest.approx(132.51, abs=5e-3)
    assert 419_430.4 == tokens_per_s(global_batch=256, sequence=4096, step_ns=2.5e9)


def test_the_guides_example_is_refused_and_explained() -> None:
    """6.88128e15 FLOP in 2.5 s of 989e12 FLOP/s are 2.7831: at least 3 GPUs, of which 1 is counted."""
    with pytest.raises(
        PerfkitError, match=r"mfu: 2\.783 of the peak .* at least 3 such GPUs and 1 are counted\. Check"
    ):
        mfu(tokens_per_s=16384 / 2.5, **RUN)


def test_the_guides_second_example_is_flagged() -> None:
    """In 8.5 s 0.8186, with the attention 0.8813: no published training reaches either."""
    for flops, expected in ((6 * 70e9, 0.8186), (flops_per_token(**GUIDE_70B), 0.8813)):
        found = mfu(tokens_per_s=16384 / 8.5, **{**RUN, "flops_per_token": flops}).iloc[0]
        assert found["mfu_frac"] == pytest.approx(expected, abs=5e-5)
        assert "suspicious" == found["verdict"]
        assert found["note"].startswith("above 70 % of the peak, which no published training")


def test_the_columns_are_what_was_divided() -> None:
    """380 tokens/s, 6 * 65.2e9 FLOP, 312e12 FLOP/s: 0.47646; excellent begins above, at 0.55."""
    found = mfu(tokens_per_s=380.0, flops_per_token=6 * 65.2e9, gpus=1, peaks=A100, precision="bf16_tensor").iloc[0]
    figures = {"tokens_per_s": 380.0, "flops_per_token": 6 * 65.2e9, "gpus": 1, "peak_flops_per_s": 312e12}
    assert figures == {name: found[name] for name in figures}
    assert ("bf16_tensor", "good", "") == tuple(found[["precision", "verdict", "note"]])
    assert found["mfu_frac"] == pytest.approx(380 * 6 * 65.2e9 / 312e12, rel=1e-12)


def test_gpus_share_the_work() -> None:
    """The same tokens on twice the GPUs are half the share, with twice the tokens the same."""
    one, two, both = (
        mfu(tokens_per_s=t, **{**RUN, "gpus": g})["mfu_frac"].item() for t, g in ((1000, 1), (1000, 2), (2000, 2))
    )
    assert one == pytest.approx(2 * two, rel=1e-12)
    assert one == pytest.approx(both, rel=1e-12)


def test_a_sparse_peak_halves_the_share() -> None:
    """It hides in a low figure: a peak with sparsity is never the cause of a share above 1, as is often said."""
    sparse = Peaks("H100", {"bf16_tensor": 2 * 989e12})
    dense, halved = (mfu(tokens_per_s=1000, **{**RUN, "peaks": p})["mfu_frac"].item() for p in (H100, sparse))
    assert halved == dense / 2


def test_full_recomputation_is_a_third_more() -> None:
    """8 N / 6 N = 4/3; a third of the forward pass 10/9; none nothing."""
    run = {"tokens_per_s": 380.0, "flops_per_token": 6 * 65.2e9, "gpus": 1, "peaks": A100, "precision": "bf16_tensor"}
    for part, factor in ((1, 4 / 3), (1 / 3, 10 / 9), (0, 1)):
        found = hfu(**run, recomputed_frac=part).iloc[0]
        assert found["hfu_frac"] / found["mfu_frac"] == pytest.approx(factor, rel=1e-12)
        assert "good" == found["verdict"]


def test_the_hardware_share_is_refused_on_its_own() -> None:
    """0.8186 with full recomputation is 1.0914: the GPU cannot have done that."""
    with pytest.raises(PerfkitError, match=r"hfu: 1\.091 of the peak is impossible"):
        hfu(tokens_per_s=16384 / 8.5, **RUN, recomputed_frac=1)


def test_the_notes_shares_do_not_fit_their_speed_up() -> None:
    """22 to 58 % is 2.64 times, the throughput 45/12 = 3.75: only a peak 1.42 times as high fits; 82.5 % would."""
    assert implied_peak_ratio(speedup=3.75, before_frac=0.22, after_frac=0.58) == pytest.approx(3.75 * 22 / 58)
    assert implied_peak_ratio(speedup=3.75, before_frac=0.22, after_frac=0.825) == pytest.approx(1, rel=1e-12)


def test_the_rungs_begin_with_their_bound() -> None:
    """Below 0.2 poor, then low, typical from 0.35, good from 0.45, excellent from 0.55 to 0.7, then suspicious."""
    shares = [0.1999, 0.2, 0.35, 0.45, 0.55, 0.7, 0.7001]
    assert ["poor", "low", "typical", "good", "excellent", "excellent", "suspicious"] == [verdict(s) for s in shares]


def test_all_of_the_peak_is_suspicious_but_possible() -> None:
    """1 is flagged, the next number above it refused."""
    assert credible(1.0, what="mfu")
    with pytest.raises(PerfkitError, match="mfu: 1 of the peak is impossible, that takes at least 2 such GPUs"):
        credible(float(np.nextafter(1, 2)), what="mfu")


def test_without_a_peak_there_is_no_share() -> None:
    """An unknown GPU, a precision it lacks and one that does not exist are told apart."""
    with pytest.raises(PerfkitError, match=r"no peak is known\. Pass peaks=hardware\.peaks"):
        mfu(tokens_per_s=1, **{**RUN, "peaks": hardware.peaks("NVIDIA H100")})
    with pytest.raises(PerfkitError, match="peaks of H100: fp8_tensor is not known"):
        mfu(tokens_per_s=1, **{**RUN, "precision": "fp8_tensor"})
    with pytest.raises(ValueError, match="precision: 'bf16' is not one of"):
        mfu(tokens_per_s=1, **{**RUN, "precision": "bf16"})


@pytest.mark.parametrize(
    ("of", "arguments", "message"),
    [
        (mfu, {"tokens_per_s": 0, **RUN}, "tokens_per_s: 0 is not a number above 0"),
        (mfu, {"tokens_per_s": np.nan, **RUN}, "tokens_per_s: nan is not"),
        (mfu, {"tokens_per_s": 1, **RUN, "gpus": 0}, "gpus: 0 is not"),
        (hfu, {"tokens_per_s": 1, **RUN, "recomputed_frac": 1.1}, "recomputed_frac: 1.1 is not within 0 and 1"),
        (flops_per_token, {"parameters": 0}, "parameters: 0 is not"),
        (flops_per_token, {"parameters": 1, "layers": 2}, "heads: 0 is not"),
        (tokens_per_s, {"global_batch": 1, "sequence": 1, "step_ns": 0}, "step_ns: 0 is not"),
        (samples_per_s, {"global_batch": -1, "step_ns": 1}, "global_batch: -1 is not"),
        (implied_peak_ratio, {"speedup": 2, "before_frac": 0, "after_frac": 1}, "before_frac: 0 is not"),
    ],
)
def test_arguments_that_cannot_be(of: object, arguments: dict[str, float], message: str) -> None:
    """The argument, what it is, and what it may be."""
    with pytest.raises(ValueError, match=message):
        of(**arguments)


BERT = {
    "forward_flops_per_s": [81.9e12],
    "training_flops_per_s": [102.0e12],
    "forward_ns": [76.67e6],
    "backward_ns": [108.02e6],
    "iteration_ns": [184.73e6],
}


def test_a_report_of_deepspeed() -> None:
    """102.0 of 312 TFLOP/s are 0.3269; over the iteration 102.0 * 184.69 / 184.73; forward 81.9 / 312 = 0.2625."""
    found = reported_mfu(samples(**BERT), peaks=A100, precision="fp16_tensor").iloc[0]
    shares = {"forward_frac": 81.9 / 312, "mfu_frac": 102 / 312, "iteration_mfu_frac": 102 / 312 * 184.69 / 184.73}
    assert shares == pytest.approx({name: found[name] for name in shares}, rel=1e-12)
    assert "" == found["note"]


def test_a_report_of_the_forward_pass_alone() -> None:
    """Without the engine's lines there is a share of the forward pass and no utilisation of the training."""
    found = reported_mfu(samples(forward_flops_per_s=[78e12, 156e12]), peaks=A100, precision="fp16_tensor").iloc[0]
    assert 0.375 == found["forward_frac"]
    assert np.isnan(found["mfu_frac"])
    assert np.isnan(found["iteration_mfu_frac"])


def test_a_report_above_the_peak_is_refused() -> None:
    """102 TFLOP/s cannot have run in FP32 on an A100, whatever the report says."""
    with pytest.raises(PerfkitError, match=r"reported_mfu: 5\.231 of the peak is impossible"):
        reported_mfu(samples(**BERT), peaks=A100, precision="fp32")


def test_reports_of_several_ranks() -> None:
    """Each rank has its row, ranks without a report have none."""
    told = together(samples(**BERT), samples(rank=1, **BERT), samples(rank=2, power_w=[1.0]))
    found = reported_mfu(told, peaks=A100, precision="fp16_tensor")
    assert [0, 1] == found["rank"].tolist()


def test_bert_large_as_deepspeed_published_it(profiles: Path) -> None:
    """102.0 of an A100's 312 TFLOP/s, 81.9 in the forward pass; the optimizer's 34.09 us hardly count."""
    run = perfkit.load(profiles / "monitor" / "deepspeed_flops_profiler_bert_large.txt")
    found = reported_mfu(run.samples, peaks=hardware.peaks("NVIDIA A100-SXM4-40GB"), precision="fp16_tensor").iloc[0]
    assert found["mfu_frac"] == pytest.approx(102.0 / 312, rel=1e-12)
    assert found["forward_frac"] == pytest.approx(81.9 / 312, rel=1e-12)
    # Forward and backward pass are 76.67 and 108.02 ms of an iteration of 184.73 ms.
    assert found["iteration_mfu_frac"] == pytest.approx(102.0 / 312 * (76.67 + 108.02) / 184.73, rel=1e-12)


def test_megatrons_iterations(profiles: Path) -> None:
    """150.62, 149.67, ... TFLOP/s of the log: the mean of what it prints over 312, typical or good of an A100."""
    path = profiles / "monitor" / "superbench__megatron_deepspeed.log"
    printed = [
        float(line.split("TFLOPs:")[1].split()[0]) for line in path.read_text().splitlines() if "TFLOPs:" in line
    ]
    found = reported_mfu(
        perfkit.load(path).samples, peaks=hardware.peaks("NVIDIA A100-SXM4-80GB"), precision="bf16_tensor"
    ).iloc[0]
    assert found["mfu_frac"] == pytest.approx(sum(printed) / len(printed) / 312, rel=1e-12)
