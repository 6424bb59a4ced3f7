"""Busy time, parts and bins of each GPU against an oracle, means of samples, and real captures."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import loaded, span, us
from frames import copies, kernels, tuples
from readers.torch_real import TRACES, as_in_the_truth, read
from real import MFU, OPTIMISED, VECTOR_ADD, truth_of
from real import WITH_KERNELS as CAPTURES
from sampled import samples, together

from perfkit.analysis import gaps, host
from perfkit.analysis.communication import overlap
from perfkit.analysis.timeline import KINDS, PARTS, bins, breakdown, busy, samples_mean
from perfkit.errors import PerfkitError
from perfkit.tables import API_CALLS, COPIES, KERNELS

LENGTH, DEVICES = 300, [(0, 0), (0, 1), (1, 0)]


K1, K2, C = us(10, 30), us(20, 40, stream=8), us(35, 60, stream=9, family="communication")
TOY, COPY, WINDOW = kernels(K1, K2, C), copies(us(55, 70)), (0, 100_000)
STATISTICS = ["mean", "p5", "p50", "p95", "max"]
SPLIT = ["computation_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns", "span_ns"]


def made(
    builder: Callable[..., pd.DataFrame], seed: int, column: str, values: list[str]
) -> pd.DataFrame:
    """Random operations on three devices, three streams and two processes, some of them empty."""
    random = np.random.default_rng(seed)
    drawn = zip(
        *(random.integers(0, high, 60).tolist() for high in (3, 3, 2, LENGTH - 25, 25, 2)),
        strict=True,
    )
    return builder(
        *(
            span(
                at,
                at + dur,
                rank=DEVICES[d][0],
                gpu=DEVICES[d][1],
                stream=s,
                process=p,
                **{column: values[v]},
            )
            for d, s, p, at, dur, v in drawn
        )
    )


def some(seed: int) -> list[pd.DataFrame]:
    families, directions = ["gemm", "communication"], ["H2D", "memset"]
    drawn = (
        made(kernels, seed, "family", families),
        made(copies, seed + 1, "direction", directions),
    )
    return [*drawn, made(kernels, seed + 2, "family", families)]


def marked(frame: pd.DataFrame) -> np.ndarray:
    """One cell per nanosecond."""
    cells = np.zeros(LENGTH, bool)
    for row in frame.itertuples():
        cells[row.start_ns : row.start_ns + row.dur_ns] = True
    return cells


def numbers(frame: pd.DataFrame) -> list[list[float]]:
    return frame.to_numpy().tolist()


def test_busy_by_hand() -> None:
    assert numbers(busy(TOY, COPY, window=WINDOW)) == [[0, 0, 0, 100_000, 50_000, 60_000, 0.5, 0.6]]
    assert numbers(busy(TOY, COPY)) == [[0, 0, 10_000, 60_000, 50_000, 60_000, 50 / 60, 1.0]]
    found = busy(kernels(K1), COPY, others=kernels(K2, C))
    assert numbers(found) == [[0, 0, 10_000, 60_000, 20_000, 60_000, 20 / 60, 1.0]]
    found = busy(kernels(span(5, 5)), COPIES.empty())
    assert found["span_ns"].tolist() == [0]
    assert found[["kernel_busy_frac", "device_busy_frac"]].isna().all(axis=None)
    # GPU 1 works from 200 us on: in the window 0..100 us it is there, and idle for all of it.
    both = kernels(K1, us(200, 210, gpu=1))
    assert breakdown(both, COPIES.empty(), window=WINDOW)["idle_ns"].tolist() == [80_000, 100_000]
    assert busy(both, COPIES.empty(), window=WINDOW)["device_busy_frac"].tolist() == [0.2, 0.0]
    # A window of 1.8e19 ns wraps around.
    with pytest.raises(PerfkitError, match=r"breakdown: .*'idle_ns': -\d+.* has a part below 0"):
        breakdown(TOY, COPY, window=(-9 * 10**18, 9 * 10**18))
    with pytest.raises(PerfkitError, match=r"share: .* is not in 0..1"):
        busy(TOY, COPY, window=(-9 * 10**18, 9 * 10**18))


@pytest.mark.parametrize("window", [None, (40, 210)])
@pytest.mark.parametrize("seed", range(3))
def test_parts_against_marked_nanoseconds(seed: int, window: tuple[int, int] | None) -> None:
    # Every nanosecond of a device belongs to exactly one part, the first that claims it, in any order of rows.
    frames = some(seed)
    mixed = [frame.sample(frac=1, random_state=1) for frame in frames]
    found, of_busy = (
        breakdown(*mixed[:2], others=mixed[2], window=window),
        busy(*mixed[:2], others=mixed[2]),
    )
    for number, (rank, gpu) in enumerate(DEVICES):
        kernel, copy, other = (f[(f["rank"] == rank) & (f["gpu"] == gpu)] for f in frames)
        compute, set_ = kernel["family"] != "communication", copy["direction"] == "memset"
        claims = [
            marked(pd.concat([kernel[compute], copy[set_]])),
            marked(kernel[~compute]),
            marked(other),
        ]
        claims += [marked(copy[~set_]), np.ones(LENGTH, bool)]
        start, span = of_busy.loc[number, ["start_ns", "span_ns"]].astype(int)
        seen = slice(*(window or (start, start + span)))
        expected = np.bincount(np.argmax(claims, axis=0)[seen], minlength=5).tolist()
        assert found.loc[number, PARTS].tolist() == expected
        assert found.loc[number, "span_ns"] == sum(expected)
        assert of_busy.loc[number, "kernel_busy_ns"] == marked(kernel).sum()
        assert of_busy.loc[number, "device_busy_ns"] == np.any(claims[:4], axis=0).sum()


def expected_bins(kernel: pd.DataFrame, copy: pd.DataFrame, edges: np.ndarray) -> list[list[Any]]:
    """Rows of `bins` from marked nanoseconds, one stream and kind after the other."""
    kernel = kernel.assign(kind=np.where(kernel["family"] == "communication", KINDS[1], KINDS[0]))
    copy = copy.assign(kind=np.where(copy["direction"] == "memset", KINDS[0], KINDS[2]))
    both, rows, lane = pd.concat([kernel, copy]), [], ["rank", "gpu", "stream", "kind"]
    for key in sorted(set(tuples(both, *lane)), key=lambda key: (*key[:3], KINDS.get_loc(key[3]))):
        cells = marked(both[(both[lane] == key).all(axis=1)])
        for first, last in pairwise(edges.tolist()):
            length = int(cells[first:last].sum())
            rows += [[*key, first, last - first, length, length / (last - first)]] if length else []
    return rows


@pytest.mark.parametrize("count", [1, 7, 64, 170])
@pytest.mark.parametrize("seed", range(2))
def test_bins_against_marked_nanoseconds(seed: int, count: int) -> None:
    kernel, copy, _ = some(seed)
    edges = 40 + 170 * np.arange(count + 1) // count
    mixed = [frame.sample(frac=1, random_state=1) for frame in (kernel, copy)]
    assert numbers(bins(*mixed, bins=count, window=(40, 210))) == expected_bins(kernel, copy, edges)


def test_bins_by_hand() -> None:
    # GPU 0 starts at 50, GPU 1 at 0, GPU 2 ends at 100: two bins of 50 ns for all.
    work = kernels(*(span(at, at + 10, gpu=gpu) for gpu, at in [(0, 50), (1, 0), (2, 90)]))
    found = bins(work, COPIES.empty(), bins=2)[["gpu", "start_ns", "dur_ns", "busy_ns"]]
    assert numbers(found) == [[0, 50, 50, 10], [1, 0, 50, 10], [2, 50, 50, 10]]
    # 3 ns asked for in 1000 bins come in 3 bins of 1 ns.
    found = bins(kernels(span(4, 7)), COPIES.empty())[["start_ns", "dur_ns", "busy_ns"]]
    assert numbers(found) == [[4, 1, 1], [5, 1, 1], [6, 1, 1]]
    assert len(bins(kernels(span(4, 4)), COPIES.empty())) == 0
    with pytest.raises(ValueError, match=r"bins: 0 is not at least 1"):
        bins(TOY, COPY, bins=0)


def test_statistics_worked_by_hand() -> None:
    # 1, 2, 3, 10: mean 16/4 = 4; at 0.05 * 3 = 0.15, 1.15; median 2.5; at 2.85, 3 + 0.85 * 7 = 8.95.
    found = samples_mean(samples(power_w=[10, 1, 3, 2]))
    assert found["count"].tolist() == [4]
    assert found[STATISTICS].iloc[0].tolist() == pytest.approx([4, 1.15, 2.5, 8.95, 10], rel=1e-12)


def test_missing_readings_have_no_statistics() -> None:
    drawn = together(samples(power_w=[1.0, np.nan]), samples(energy_j=[np.nan]))
    drawn["metric"] = drawn["metric"].cat.reorder_categories(["power_w", "energy_j"])
    found = samples_mean(drawn)
    assert [("energy_j", 0), ("power_w", 1)] == tuples(found, "metric", "count")  # by their text
    assert found[STATISTICS].iloc[0].isna().all()
    assert found[STATISTICS].iloc[1].tolist() == [1.0] * 5


# Computed with memsets as computation; per GPU the first columns of SPLIT.
ANCHORS = {
    "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite": [[381_096_717, 0, 38_499_779]],
    "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite": [[294_404_540, 0, 9_390_923]],
    MFU: [[253_800_656, 17_172_652, 2_844_479], [256_199_208, 8_229_100, 2_847_608]],
    OPTIMISED: [[80_492_582, 0, 2_272_604]],
}
METRICS = {
    "SM Active": "sm_active_frac",
    "GR Active": "gr_active_frac",
    "Tensor Active": "tensor_active_frac",
}
METRICS |= {"DRAM Read Throughput": "dram_read_frac", "DRAM Write Throughput": "dram_write_frac"}


def device_truth(profiles: Path, capture: str) -> list[dict[str, Any]]:
    found = truth_of(profiles, "nsys", capture)["devices"]
    return [found[key] for key in sorted(found, key=int)]


def extent(profiles: Path, capture: str) -> tuple[int, int]:
    spans = [
        (d["first_op_start"], d["first_op_start"] + d["span"])
        for d in device_truth(profiles, capture)
    ]
    return min(start for start, _ in spans), max(end for _, end in spans)


@pytest.mark.parametrize("capture", CAPTURES)
def test_busy_parts_and_overlap_are_those_of_the_truth(profiles: Path, capture: str) -> None:
    # Unions are exact, over the time in which any device works; the truth's parts count memsets as copies.
    run, told = loaded(profiles / "nsys" / capture), device_truth(profiles, capture)
    start, end = extent(profiles, capture)
    found = busy(run.kernels, run.copies)[
        ["start_ns", "span_ns", "kernel_busy_ns", "device_busy_ns"]
    ]
    assert numbers(found) == [
        [start, end - start, d["kernel_busy_union"], d["gpu_busy_union"]] for d in told
    ]
    direction = run.copies["direction"].astype(str).replace("memset", "D2D").astype("category")
    keys = ["computation", "exposed_communication", "exposed_memory"]
    parts = [[d["split"][key] for key in keys] for d in told]
    found = breakdown(run.kernels, run.copies.assign(direction=direction))[SPLIT]
    assert numbers(found) == [[*of, end - start - sum(of), end - start] for of in parts]
    nccl = [d.get("nccl", {"union": 0, "overlap_with_compute": 0}) for d in told]
    rows = numbers(overlap(run.kernels)[["communication_ns", "overlapped_ns", "overlap_frac"]])
    assert [[value for value in row if not pd.isna(value)] for row in rows] == [
        [of[key] for key in ("union", "overlap_with_compute", "overlap_ratio") if key in of]
        for of in nccl
    ]
    if capture in ANCHORS:
        expected = [[*of, end - start - sum(of), end - start] for of in ANCHORS[capture]]
        assert numbers(breakdown(run.kernels, run.copies)[SPLIT]) == expected


@pytest.mark.parametrize("capture", [OPTIMISED, VECTOR_ADD])
def test_samples_mean(profiles: Path, capture: str) -> None:
    metrics = truth_of(profiles, "nsys", capture)["gpu_metrics"]
    first, last = metrics["window_kernel"]
    (of_gpu,) = metrics["sets"].values()
    samples = loaded(profiles / "nsys" / capture).samples
    for window, count, mean in (
        (None, "n", "mean_all"),
        ((first, last + 1), "n_window", "mean_window"),
    ):
        found = samples_mean(samples, window=window)
        found = found.set_index(found["metric"].astype(str))
        for spelling, name in METRICS.items():
            expected = of_gpu["metrics"][spelling]
            assert found.loc[name, "count"] == expected[count]
            assert found.loc[name, "mean"] == pytest.approx(expected[mean] / 100, rel=1e-12)


@pytest.mark.parametrize("name", TRACES)
def test_gaps_and_launch_delays_of_traces(name: str, profiles: Path) -> None:
    # On the truth's clock.
    truth = truth_of(profiles, "torch", name)
    capture = read(profiles / "torch" / name)
    of = (KERNELS, COPIES, API_CALLS)
    kernels, copies, calls = (
        table.make(as_in_the_truth(capture, table.name, truth)) for table in of
    )
    idle = gaps.idle_gaps(kernels, copies, calls)
    for gpu, told in truth["devices"].items():
        own = idle.loc[idle["gpu"] == int(gpu), "dur_ns"]
        for limit, least in {"gt_10us": 10_000, "gt_100us": 100_000, "gt_1ms": 1_000_000}.items():
            long = own[own > least]
            assert told.get("gaps", {}).get(limit) in (
                None,
                {"count": len(long), "total": int(long.sum())},
            ), limit
        known = told.get("launch", {"kernels_linked": 0})
        found = host.latency(KERNELS.make(kernels[kernels["gpu"] == int(gpu)]), calls)
        assert known["kernels_linked"] == len(found)
        if len(found):
            delay, after = found["delay_ns"], found["delay_ns"] - found["api_ns"]
            began, ended = known["from_launch_start"], known["from_launch_end"]
            ours = [delay.mean(), delay.median(), delay.max()]
            assert [began[of] for of in ("mean", "median", "max")] == pytest.approx(ours, rel=1e-9)
            assert [ended["mean"], ended["median"]] == pytest.approx(
                [after.mean(), after.median()], rel=1e-9
            )
            assert ended["negative"] == (after < 0).sum() == found["queue_ns"].isna().sum()
