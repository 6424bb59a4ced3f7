"""Clocks of ranks, compared at the ends of collectives, and what the collectives lose.

Planted are the true times of a small machine; each rank writes them by a clock of its own. The machine knows nothing of
perfkit's analysis: it has hosts, steps, links, and ranks that meet.
"""

import gzip
import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from frames import kernels, lasting, tuples

import perfkit
from perfkit.analysis import clocks, communication
from perfkit.tables import COLLECTIVES

CAUSES = ("transfer", "arrival skew", "host dispatch")
PER_NODE = 4


class Recorded(NamedTuple):
    """What the ranks wrote, and how far ahead the clock of each rank was at its time 0, with its drift."""

    collectives: pd.DataFrame
    kernels: pd.DataFrame
    ahead_ns: list[float]
    drift: list[float]


def all_reduces(frame: pd.DataFrame, **more: Any) -> pd.DataFrame:
    columns = {
        "gpu": 0,
        "operation": "all_reduce",
        "bytes": 1 << 26,
        "group": "world",
        "source": "trace",
        **more,
    }
    unknown = dict.fromkeys(("dtype", "algorithm", "protocol", "placement"))
    return COLLECTIVES.make(
        frame.assign(**{k: v for k, v in columns.items() if k not in frame}, **unknown)
    )


def recorded(
    seed: int,
    cause: str = "transfer",
    nodes: int = 2,
    steps: int = 60,
    most_ns: float = 5e6,
    exit_ns: float = 8e3,
) -> Recorded:
    """Steps of computation and an all-reduce, with one cause that costs the most; clocks of nodes differ."""
    random = np.random.default_rng(seed)
    count = nodes * PER_NODE
    drawn = np.column_stack(
        [random.uniform(-most_ns, most_ns, nodes), random.uniform(-5e-5, 5e-5, nodes)]
    )
    of_node = drawn * np.arange(nodes).clip(0, 1)[:, None]  # the first node has the reference
    ahead, drift = of_node.repeat(PER_NODE, axis=0).T.tolist()
    guilty, compute = int(random.integers(count)), random.uniform(2e6, 6e6)
    transfer = compute * (
        random.uniform(0.5, 1.0) if cause == "transfer" else random.uniform(0.02, 0.05)
    )
    free, works, meets = np.zeros(count), [], []
    for _ in range(steps):
        pause = random.uniform(2e3, 2e4, count)
        work = compute * random.uniform(0.99, 1.01, count)
        pause[guilty] += compute * random.uniform(0.2, 0.5) * (cause == "host dispatch")
        work[guilty] *= 1 + random.uniform(0.2, 0.5) * (cause == "arrival skew")
        begin = free + pause
        come = begin + work + random.uniform(1e3, 5e3, count)
        leave = come.max() + transfer + random.uniform(0, exit_ns, count)
        works += [(rank, begin[rank], begin[rank] + work[rank], "gemm") for rank in range(count)]
        meets += [(rank, come[rank], leave[rank]) for rank in range(count)]
        free = leave

    def written(rank: int, true: float) -> int:
        return round(true + ahead[rank] + drift[rank] * true)

    ran = [(rank, begin, end, "gemm") for rank, begin, end, _ in works]
    ran += [(rank, begin, end, "communication") for rank, begin, end in meets]
    names = {"communication": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "gemm": "gemm"}
    rows = [
        lasting(start, written(rank, end) - start, names[family], rank=rank, family=family)
        for rank, begin, end, family in ran
        for start in [written(rank, begin)]
    ]
    frame = kernels(*rows)
    meeting = frame[frame["family"] == "communication"][["rank", "gpu", "start_ns", "dur_ns"]]
    return Recorded(all_reduces(meeting, ranks=count), frame, ahead, drift)


@pytest.mark.parametrize("seed", range(3))
def test_offsets_and_drift_are_recovered(seed: int) -> None:
    made = recorded(seed, cause=CAUSES[seed % 3], nodes=2 + seed % 3, steps=200)
    found = clocks.offsets(made.collectives).set_index("rank")
    end = int((made.collectives["start_ns"] + made.collectives["dur_ns"]).max())
    for at in (0, end):
        wrong = (
            found["offset_ns"]
            + found["drift_frac"] * at
            - np.array(made.ahead_ns)
            - np.array(made.drift) * at
        )
        assert wrong.abs().max() < 20_000
        assert (wrong.abs() <= 2 * found["error_ns"] + 1).all()
    assert found.loc[PER_NODE:, "moved"].all()


@pytest.mark.parametrize("seed", range(6))
def test_causes_are_told_apart(seed: int) -> None:
    cause = CAUSES[seed % 3]
    made = recorded(100 + seed, cause=cause)
    found = clocks.losses(
        made.collectives, made.kernels, clocks.offsets(made.collectives), gpus_per_node=PER_NODE
    )
    columns = ["verdict", "span", "ranks_count", "count"]
    assert [(cause, "across nodes", 2 * PER_NODE, 60)] == tuples(found, *columns)


def test_equal_clocks_are_left_alone() -> None:
    made = recorded(3, most_ns=0.0)
    drift = np.array(made.drift)[made.collectives["rank"]]
    start = made.collectives["start_ns"].astype("int64")
    true = made.collectives.assign(start_ns=(start / (1 + drift)).round().astype("Int64"))
    found = clocks.offsets(true)
    assert not found["moved"].any()
    assert found["offset_ns"].iloc[1:].ne(0).any()
    pd.testing.assert_frame_equal(clocks.aligned(true, found), true)


def test_groups_are_chained() -> None:
    rows, random, ahead = [], np.random.default_rng(0), (0, 3_000_000, -2_000_000)
    for step in range(50):
        for group, ranks in (("a", (0, 1)), ("b", (1, 2))):
            leave = (2 * step + (group == "b")) * 1_000_000 - 500_000
            rows += [
                (rank, leave + ahead[rank] + int(random.integers(0, 4_000)), group)
                for rank in ranks
            ]
    frame = pd.DataFrame(rows, columns=["rank", "start_ns", "group"])
    found = clocks.offsets(all_reduces(frame, bytes=8, ranks=2, dur_ns=5e5)).set_index("rank")
    assert found["offset_ns"].tolist() == pytest.approx([0, 3e6, -2e6], abs=4_000)
    assert found["error_ns"][2] > found["error_ns"][1] > 0


def test_recordings_that_end_earlier_are_matched_and_later_ones_refused() -> None:
    made = recorded(5)
    late = made.collectives.groupby("rank")["start_ns"].rank(ascending=False)
    shorter = made.collectives[~(made.collectives["rank"].eq(5) & late.le(3))]
    found = clocks.offsets(COLLECTIVES.make(shorter)).set_index("rank")
    assert 57 == found.loc[5, "count"]
    assert found["offset_ns"].to_numpy() == pytest.approx(made.ahead_ns, abs=20_000)
    # Rank 3 lacks the first collectives: which are the same is not known, and nothing of it moves.
    shorter = made.collectives[
        ~((made.collectives["rank"] == 3) & (made.collectives["start_ns"].rank() < 40))
    ]
    found = clocks.offsets(COLLECTIVES.make(shorter))
    ((moved, verdict),) = tuples(found[found["rank"] == 3], "moved", "verdict")
    assert not moved
    assert verdict.startswith("not known: the ends fit as well to collectives before or after")
    assert not set(clocks.losses(shorter, made.kernels, found)["verdict"]) - {"inconclusive"}
    made = recorded(6, cause="arrival skew", nodes=1)
    rows = made.collectives.astype({"start_ns": "int64"})
    place = rows.groupby("rank").cumcount()
    kept = rows[np.where(rows["rank"] == 1, place > 0, place < 59)]
    found = clocks.offsets(COLLECTIVES.make(kept)).set_index("rank")
    assert not found["moved"][1]
    assert "Are these the same steps?" in str(found["verdict"][1])


def test_eight_real_ranks_of_one_node(profiles: Path) -> None:
    folder = profiles / "torch" / "facebookresearch__param__dlrm_kineto"
    run = perfkit.load(folder)
    told = clocks.of_ranks(run.collectives, run.kernels)
    found = clocks.offsets(told)
    assert 8 == len(found)
    assert not found["moved"].any()
    assert found["error_ns"].max() < 3_000
    ends: dict[tuple[str, int], list[int]] = defaultdict(list)
    starts: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for rank in range(8):
        (file,) = folder.glob(f"worker{rank}_*")
        for key, start, end in _raw(file):
            ends[key].append(end)
            starts[key].append((start, rank))
    assert {8} == {len(each) for each in ends.values()}
    assert max(max(each) - min(each) for each in ends.values()) == 7, (
        "µs between the ends of one collective"
    )
    last = Counter(max(each)[1] for each in starts.values())
    late = communication.stragglers(clocks.aligned(told, found)).set_index("rank")["last_count"]
    assert {7: 5, 5: 2, 4: 1} == last == late[late > 0].to_dict()


def _raw(file: Path) -> list[tuple[tuple[str, int], int, int]]:
    """Name and place, start and end of each NCCL kernel of a trace, µs since 1970."""
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    rows = [e for e in events if e.get("cat", "").lower() == "kernel" and "nccl" in e["name"]]
    seen: dict[str, Any] = defaultdict(itertools.count)
    rows.sort(key=lambda event: event["ts"])
    return [((e["name"], next(seen[e["name"]])), e["ts"], e["ts"] + e["dur"]) for e in rows]
