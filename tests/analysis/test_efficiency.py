"""MFU and HFU, verdicts on them, and those of real logs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames import tuples
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

H100, SPARSE = (Peaks("H100", {"bf16_tensor": factor * 989e12}) for factor in (1, 2))
A100 = Peaks("A100", {"bf16_tensor": 312e12, "fp16_tensor": 312e12, "fp32": 19.5e12})
RUN = {"flops_per_token": 6 * 70e9, "gpus": 1, "peaks": H100, "precision": "bf16_tensor"}
GUIDE_70B = {"parameters": 70e9, "layers": 80, "heads": 64, "head_size": 128, "sequence": 4096}
ONE = {"tokens_per_s": 1, **RUN}


def test_flops_per_token_and_tokens_per_second() -> None:
    # 832,571 samples in 6283.2402 s are 132.51 per second; 256 samples of 4096 tokens in 2.5 s 419,430.4 tokens.
    attention = flops_per_token(**GUIDE_70B) - flops_per_token(parameters=70e9)
    assert attention == 32_212_254_720
    assert attention / 420e9 == pytest.approx(0.0767, abs=5e-5)
    assert samples_per_s(global_batch=832_571, step_ns=6283.2402e9) == pytest.approx(
        132.51, abs=5e-3
    )
    assert 419_430.4 == tokens_per_s(global_batch=256, sequence=4096, step_ns=2.5e9)


def test_the_guides_second_example_is_flagged() -> None:
    for flops, expected in ((6 * 70e9, 0.8186), (flops_per_token(**GUIDE_70B), 0.8813)):
        found = mfu(tokens_per_s=16384 / 8.5, **{**RUN, "flops_per_token": flops}).iloc[0]
        assert found["mfu_frac"] == pytest.approx(expected, abs=5e-5)
        assert "suspicious" == found["verdict"]
        assert found["note"].startswith("above 70 % of the peak, which no published training")


LLAMA = {
    "tokens_per_s": 380.0,
    "flops_per_token": 6 * 65.2e9,
    "gpus": 1,
    "peaks": A100,
    "precision": "bf16_tensor",
}


def test_the_columns_are_what_was_divided() -> None:
    # 380 tokens/s, 6 * 65.2e9 FLOP, 312e12 FLOP/s: 0.47646; excellent begins above, at 0.55.
    found = mfu(**LLAMA).iloc[0]
    figures = {
        "tokens_per_s": 380.0,
        "flops_per_token": 6 * 65.2e9,
        "gpus": 1,
        "peak_flops_per_s": 312e12,
    }
    figures |= {"precision": "bf16_tensor", "verdict": "good", "note": ""}
    assert figures == found[[*figures]].to_dict()
    assert found["mfu_frac"] == pytest.approx(380 * 6 * 65.2e9 / 312e12, rel=1e-12)
    # With full recomputation 8 N / 6 N = 4/3; a third of the forward pass 10/9; none nothing.
    for part, factor in ((1, 4 / 3), (1 / 3, 10 / 9), (0, 1)):
        found = hfu(**LLAMA, recomputed_frac=part).iloc[0]
        assert found["hfu_frac"] / found["mfu_frac"] == pytest.approx(factor, rel=1e-12)
        assert "good" == found["verdict"]


def test_gpus_share_the_work() -> None:
    given = {}, {"gpus": 2}, {"tokens_per_s": 2000, "gpus": 2}, {"peaks": SPARSE}
    one, two, both, halved = (
        mfu(**{"tokens_per_s": 1000, **RUN, **of})["mfu_frac"].item() for of in given
    )
    assert [one, one] == pytest.approx([2 * two, both], rel=1e-12)
    assert halved == one / 2  # a peak with sparsity hides in a low figure
    # 22 to 58 % is 2.64 times, the throughput 45/12 = 3.75: only a peak 1.42 times as high fits; 82.5 % would.
    assert implied_peak_ratio(speedup=3.75, before_frac=0.22, after_frac=0.58) == pytest.approx(
        3.75 * 22 / 58
    )
    assert implied_peak_ratio(speedup=3.75, before_frac=0.22, after_frac=0.825) == pytest.approx(
        1, rel=1e-12
    )


def test_the_rungs_begin_with_their_bound() -> None:
    # 1 is flagged, the next number above it refused.
    shares = [0.1999, 0.2, 0.35, 0.45, 0.55, 0.7, 0.7001]
    assert ["poor", "low", "typical", "good", "excellent", "excellent", "suspicious"] == [
        verdict(s) for s in shares
    ]
    assert credible(1.0, what="mfu")
    with pytest.raises(
        PerfkitError, match="mfu: 1 of the peak is impossible, that takes at least 2 such GPUs"
    ):
        credible(float(np.nextafter(1, 2)), what="mfu")


@pytest.mark.parametrize(
    ("of", "arguments", "error", "message"),
    [
        # 6.88128e15 FLOP in 2.5 s of 989e12 FLOP/s are 2.7831: at least 3 GPUs, of which 1 is counted.
        (
            mfu,
            {**ONE, "tokens_per_s": 16384 / 2.5},
            PerfkitError,
            r"2\.783 of .* at least 3 such GPUs and 1 are",
        ),
        # 0.8186 with full recomputation is 1.0914: the GPU cannot have done that.
        (
            hfu,
            {**ONE, "tokens_per_s": 16384 / 8.5, "recomputed_frac": 1},
            PerfkitError,
            r"hfu: 1\.091 of the peak",
        ),
        # An unknown GPU, a precision it lacks and one that does not exist are told apart.
        (
            mfu,
            {**ONE, "peaks": hardware.peaks("NVIDIA H100")},
            PerfkitError,
            "no peak is known. Pass peaks=hardware",
        ),
        (
            mfu,
            {**ONE, "precision": "fp8_tensor"},
            PerfkitError,
            "peaks of H100: fp8_tensor is not known",
        ),
        (mfu, {**ONE, "precision": "bf16"}, ValueError, "precision: 'bf16' is not one of"),
        (mfu, {**ONE, "tokens_per_s": 0}, ValueError, "tokens_per_s: 0 is not a number above 0"),
        (
            hfu,
            {**ONE, "recomputed_frac": 1.1},
            ValueError,
            "recomputed_frac: 1.1 is not within 0 and 1",
        ),
        (flops_per_token, {"parameters": 1, "layers": 2}, ValueError, "heads: 0 is not"),
    ],
)
def test_arguments_that_cannot_be(
    of: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        of(**arguments)


BERT = {"forward_flops_per_s": [81.9e12], "training_flops_per_s": [102.0e12]}
BERT |= {"forward_ns": [76.67e6], "backward_ns": [108.02e6], "iteration_ns": [184.73e6]}


def test_a_report_of_deepspeed() -> None:
    # Each rank has its row, ranks without a report have none.
    told = together(samples(**BERT), samples(rank=1, **BERT), samples(rank=2, power_w=[1.0]))
    found = reported_mfu(told, peaks=A100, precision="fp16_tensor")
    assert [(0, ""), (1, "")] == tuples(found, "rank", "note")
    shares = {
        "forward_frac": 81.9 / 312,
        "mfu_frac": 102 / 312,
        "iteration_mfu_frac": 102 / 312 * 184.69 / 184.73,
    }
    for row in found.to_dict("records"):
        assert shares == pytest.approx({name: row[name] for name in shares}, rel=1e-12)
    # Without the engine's lines there is a share of the forward pass and no utilisation of the training.
    alone = reported_mfu(
        samples(forward_flops_per_s=[78e12, 156e12]), peaks=A100, precision="fp16_tensor"
    ).iloc[0]
    assert [0.375, np.nan, np.nan] == pytest.approx(
        alone[list(shares)].astype(float).tolist(), nan_ok=True
    )
    with pytest.raises(PerfkitError, match=r"reported_mfu: 5\.231 of the peak is impossible"):
        reported_mfu(samples(**BERT), peaks=A100, precision="fp32")


def test_published_logs(profiles: Path) -> None:
    run = perfkit.load(profiles / "monitor" / "deepspeed_flops_profiler_bert_large.txt")
    found = reported_mfu(
        run.samples, peaks=hardware.peaks("NVIDIA A100-SXM4-40GB"), precision="fp16_tensor"
    ).iloc[0]
    # Forward and backward pass are 76.67 and 108.02 ms of an iteration of 184.73 ms.
    expected = [102.0 / 312, 81.9 / 312, 102.0 / 312 * (76.67 + 108.02) / 184.73]
    shares = found[["mfu_frac", "forward_frac", "iteration_mfu_frac"]].astype(float).tolist()
    assert expected == pytest.approx(shares, rel=1e-12)
    # Of Megatron's log the mean of what it prints, 150.62, 149.67, ... TFLOP/s, over 312.
    path = profiles / "monitor" / "superbench__megatron_deepspeed.log"
    words = (
        line.split("TFLOPs:")[1] for line in path.read_text().splitlines() if "TFLOPs:" in line
    )
    printed = [float(word.split()[0]) for word in words]
    a100 = hardware.peaks("NVIDIA A100-SXM4-80GB")
    found = reported_mfu(perfkit.load(path).samples, peaks=a100, precision="bf16_tensor").iloc[0]
    assert found["mfu_frac"] == pytest.approx(sum(printed) / len(printed) / 312, rel=1e-12)
