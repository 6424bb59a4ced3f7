"""Scaling efficiency, and times by formula."""

import numpy as np
import pandas as pd
import pytest

from perfkit import hardware
from perfkit.analysis.scaling import (
    RUNS,
    all_reduce_time,
    checkpoint_time,
    decode_floor,
    scaling,
    training_time,
)
from perfkit.errors import PerfkitError
from perfkit.hardware import Peaks


def runs(gpus: list[int], throughput: list[float]) -> pd.DataFrame:
    return RUNS.make(pd.DataFrame({"gpus": gpus, "throughput_per_s": throughput}))


def test_the_guides_table() -> None:
    found = scaling(runs([1, 8, 64, 512], [1000, 7200, 48000, 320000]))
    assert [1.0, 0.9, 0.75, 0.625] == found["efficiency_frac"].tolist()
    assert [1.0, 7.2, 48.0, 320.0] == found["speedup"].tolist()
    assert {1} == set(found["baseline_gpus"])
    # Without a run on one GPU the smallest is the baseline, two runs on it averaged: 44 / (4 x 12.5).
    found = scaling(runs([32, 8, 8], [44, 12, 13]))
    assert ([8, 8, 32], {8}) == (found["gpus"].tolist(), set(found["baseline_gpus"]))
    assert found["efficiency_frac"].tolist() == pytest.approx(
        [12 / 12.5, 13 / 12.5, 0.88], rel=1e-12
    )
    # More than linear is shown and flagged.
    found = scaling(runs([1, 2], [10, 22]))
    assert [1.0, 1.1] == found["efficiency_frac"].tolist()
    assert ["", "above 1: check"] == [note[:14] for note in found["note"]]


def test_wrong_runs() -> None:
    for gpus, throughput in ((0, 1.0), (1, 0.0), (1, np.nan), (1, np.inf)):
        with pytest.raises(
            ValueError, match=f"runs: {throughput} per second on {gpus} GPUs are not both above 0"
        ):
            scaling(runs([gpus], [throughput]))


H100 = Peaks("H100", {"bf16_tensor": 989e12}, memory_bytes_per_s=3.35e12)


def test_the_guides_training_takes_829436_seconds() -> None:
    # 2e12 * 420e9 = 8.4e23 FLOP; 2048 * 989e12 / 2 FLOP/s; the guide's 829,222 s is rounded.
    found = training_time(tokens=2e12, tokens_per_s=0.5 * 2048 * 989e12 / 420e9)
    assert 829_436 == round(found / 1e9)
    assert found == pytest.approx(8.4e23 / (2048 * 989e12 / 2) * 1e9, rel=1e-12)


def test_all_reduce_over_a_ring() -> None:
    # 2 * 63/64 * 140 GB: 5.5125 s at 50 GB/s; 280 GB of FP32 gradients 11.025 s.
    for size, rate, expected in (
        (140e9, 50e9, 5.5125),
        (140e9, 200e9, 1.378125),
        (280e9, 50e9, 11.025),
    ):
        found = all_reduce_time(size_bytes=size, ranks=64, bytes_per_s=rate)
        assert found == pytest.approx(expected * 1e9, rel=1e-12)
    # 2 * 63 steps of 10 us are 1.26 ms; a message of 1 byte takes little else; one rank has nothing to exchange.
    plain, late = (
        all_reduce_time(size_bytes=1, ranks=64, bytes_per_s=50e9, latency_ns=a) for a in (0, 10_000)
    )
    assert late - plain == pytest.approx(1_260_000, rel=1e-12)
    assert plain < 1
    assert 0 == all_reduce_time(size_bytes=1e9, ranks=1, bytes_per_s=1e9, latency_ns=5)
    # nccl-tests on 8 GPUs: 8,589,934,592 B in 31,533 us are 476.72 GB/s of bus bandwidth, printed with five digits.
    found = all_reduce_time(size_bytes=8_589_934_592, ranks=8, bytes_per_s=476.72e9)
    assert found == pytest.approx(31_533e3, rel=2e-5)


def test_decoding_reads_every_weight_once() -> None:
    for weights, gpus, memory, expected in (
        *((140e9, 1, 141e9, 41.791), (140e9, 2, 80e9, 20.896), (35e9, 1, 80e9, 10.448)),
        (80e9, 1, 80e9, 80e12 / 3.35e12),
    ):
        found = decode_floor(weight_bytes=weights, gpus=gpus, memory_bytes=memory, peaks=H100)
        assert found / 1e6 == pytest.approx(expected, abs=5e-4)
    known = {"weight_bytes": 140e9, "gpus": 1, "memory_bytes": 80e9, "peaks": H100}
    unknown = r"memory or bandwidth of the GPU are not known\. Pass memory_bytes"
    for more, why in (
        ({}, r"140 GB do not fit into 80.0 GB of 1 GPUs\. Spread them over at least 2"),
        ({"memory_bytes": None}, unknown),
        ({"peaks": hardware.peaks("NVIDIA H100")}, unknown),
        ({"weight_bytes": 1e9, "peaks": Peaks("mine", {})}, "memory bandwidth is not known"),
    ):
        with pytest.raises(PerfkitError, match=why):
            decode_floor(**(known | more))


def test_a_checkpoint_holds_the_optimizers_state_too() -> None:
    run = {"parameters": 70e9, "weight_bytes_each": 2, "bytes_per_s": 140e9 / 60}
    for each, seconds in ((0, 60), (12, 420)):
        assert checkpoint_time(**run, optimizer_bytes_each=each) == pytest.approx(
            seconds * 1e9, rel=1e-12
        )


@pytest.mark.parametrize(
    ("of", "arguments", "message"),
    [
        (training_time, {"tokens": 0, "tokens_per_s": 1}, "tokens: 0 is not a number above 0"),
        (
            decode_floor,
            {"weight_bytes": 1, "gpus": 0, "memory_bytes": 1, "peaks": H100},
            "gpus: 0 is not",
        ),
    ],
)
def test_arguments_that_cannot_be(of: object, arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of(**arguments)
