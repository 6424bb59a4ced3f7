"""Kernels and call paths of two runs side by side, and the time of families per step."""

import counted
import numpy as np
import pandas as pd
import pytest
from analysis.spans import span
from analysis.spans import steps as steps_of
from callpaths import MAIN, call_metrics, calltree
from frames import api_calls, kernels, lasting, tuples, types
from sampled import samples as sampled
from sampled import together

from perfkit.analysis import compare
from perfkit.analysis.compare import samples
from perfkit.analysis.compare.pairs import PATHS, families, in_steps, launches, paths
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, CALL_METRICS, CALLTREE, KERNELS, LAUNCHES, SAMPLES

Profile = tuple[pd.DataFrame, pd.DataFrame]


def tiled(count: int, length: int, *, rank: int = 0) -> pd.DataFrame:
    return steps_of(*((length * n, length * (n + 1)) for n in range(count)), rank=rank)


def training(count: int, seed: int, *, slower: str = "", by: float = 1.0) -> pd.DataFrame:
    """Kernels of three families in steps of 1 ms, each 1 % off by chance; one family slower by a factor."""
    random = np.random.default_rng(seed)
    rows = []
    for step in range(count):
        for place, (family, dur) in enumerate(
            (("gemm", 100_000), ("elementwise", 20_000), ("reduction", 50_000))
        ):
            spent = dur * (by if family == slower else 1.0) * random.normal(1, 0.01)
            rows.append(
                lasting(step * 1_000_000 + 200_000 * place, round(spent), family, family=family)
            )
    return in_steps(kernels(*rows), tiled(count, 1_000_000))


def test_kernels_by_hand() -> None:
    before = kernels(
        *(lasting(100 * i, 10 + 10 * i, "a") for i in range(3)),
        lasting(400, 7, "b"),
        lasting(500, 5, "d"),
    )
    after = kernels(
        lasting(0, 15, "a"), lasting(100, 15, "a"), lasting(300, 40, "c"), lasting(500, 5, "d")
    )
    found = compare.kernels(before, after)
    statuses = [("c", "new", 40), ("a", "changed", -30), ("b", "gone", -7), ("d", "same", 0)]
    assert statuses == tuples(found, "name", "status", "difference_ns")
    found = found.set_index("name")
    assert [3, 2, 60, 30, 20, 15, -30, 0.5, 0.75] == found.loc["a"].iloc[4:-1].tolist()
    assert found.loc["c", ["median_before_ns", "ratio", "median_ratio"]].isna().all()
    assert (0.0, True) == (found.loc["b", "ratio"], np.isnan(found.loc["b", "median_ratio"]))
    # Small changes are the same.
    before, after = kernels(lasting(0, 100, "a")), kernels(lasting(0, 104, "a"))
    split = kernels(lasting(0, 50, "a"), lasting(60, 50, "a"))
    for other, more, status in (
        (after, {}, "same"),
        (after, {"tolerance": 0.03}, "changed"),
        (split, {}, "changed"),
    ):
        assert [status] == compare.kernels(before, other, **more)["status"].tolist()


def test_per_step_and_repeat() -> None:
    # Two repeats with 10 and 30 ns are 20 ns per repeat; names that only one has count too.
    before = kernels(
        *(lasting(100 * step + 50 * i, 10, "a") for step in range(3) for i in range(2))
    )
    after = kernels(lasting(0, 12, "a"), lasting(50, 12, "a"))
    found = compare.kernels(in_steps(before, tiled(3, 100)), in_steps(after, tiled(1, 100)))
    assert [2, 2, 20, 24, 10, 12, 4, 1.2, 1.2] == found.iloc[0, 5:-1].tolist()
    repeats = [kernels(lasting(0, 10, "a")), kernels(lasting(0, 30, "a"), lasting(50, 8, "b"))]
    found = compare.kernels(repeats, kernels(lasting(0, 20, "a")))
    columns = ["name", "count_before", "total_before_ns", "median_before_ns"]
    assert {("a", 1, 20, 20), ("b", 0.5, 4, 8)} == {*tuples(found, *columns)}


def test_the_grid_tells_launches_apart() -> None:
    # A larger batch changes the grid: the old is gone and the new is new.
    rows = [lasting(10 * i, 5 + i, "a", grid_blocks=g) for i, g in enumerate((4, 8, 4))]
    one = kernels(*rows)
    assert [(4, 6), (8, 6)] == sorted(
        tuples(compare.kernels(one, one), "grid_blocks", "median_before_ns")
    )
    pair = [kernels(lasting(0, dur, "a", grid_blocks=g)) for dur, g in ((10, 4), (20, 8))]
    assert {"gone", "new"} == set(compare.kernels(*pair)["status"])


def test_differences_add_up() -> None:
    # Nothing on both sides has no row and the columns of something; on one side all is gone or new.
    pair = [training(12, seed, slower="gemm", by=1.5 - seed) for seed in (0, 1)]
    found = compare.kernels(*pair)
    sums = [frame["dur_ns"].sum() / 12 for frame in pair]
    assert sums == pytest.approx(found[["total_before_ns", "total_after_ns"]].sum().tolist())
    assert sums[1] - sums[0] == pytest.approx(found["difference_ns"].sum())
    some, none = kernels(lasting(0, 9, "a")), KERNELS.empty()
    found = [
        compare.kernels(*both) for both in ((none, none), (some, some), (some, none), ([], some))
    ]
    assert types(found[0]) == types(found[1])
    assert [[], ["same"], ["gone"], ["new"]] == [each["status"].tolist() for each in found]


def test_launches_of_counters() -> None:
    named = {"name": "sgemm", "full_name": "ampere_sgemm_32x32", "grid_blocks": 8}

    def report(*durations: float) -> pd.DataFrame:
        return counted.launches(*({**named, "dur_ns": dur_ns} for dur_ns in durations))

    found = launches(report(100, 300, np.nan), report(50)).iloc[0]
    assert [2, 1, 400, 50, 200, 50, -350] == found.iloc[5:12].tolist()
    assert ("gemm", "changed") == (found["family"], found["status"])
    assert launches(LAUNCHES.empty(), LAUNCHES.empty()).empty


def test_in_steps_by_start_and_by_launch() -> None:
    steps = tiled(3, 100).assign(steady=[False, True, True], dur_ns=80)
    found = in_steps(
        kernels(*(lasting(start, 30, "a") for start in (20, 100, 179, 180, 250, 300))), steps
    )
    assert [(100, 1), (179, 1), (250, 2)] == tuples(found, "start_ns", "step")
    # Each rank's kernels belong to its own steps; a rank without steps has none.
    rows = kernels(*(lasting(120, 10, "a", rank=rank) for rank in range(3)))
    assert [(0, 1), (2, 0)] == tuples(
        in_steps(rows, of_ranks(tiled(2, 100), tiled(2, 150, rank=2))), "rank", "step"
    )
    late = kernels(
        *(lasting(60 + 50 * i, 20, "a", correlation=i) for i in range(4)), lasting(199, 5, "b")
    )
    calls, steps = (
        api_calls(*(span(50 * i, 50 * i + 5, correlation=i) for i in range(4))),
        tiled(2, 100),
    )
    assert [0, 0, 1, 1, 1] == in_steps(late, steps, api_calls=calls)["step"].tolist()
    assert [0, 1, 1, 1] == in_steps(late, steps)["step"].tolist()
    of_gpu = steps.assign(how=pd.Categorical(["kernel sequence"] * 2))
    assert in_steps(late, steps).equals(in_steps(late, of_gpu, api_calls=calls))


def of_ranks(*steps: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(steps, ignore_index=True).astype({"name": "category", "how": "category"})


def test_families_by_hand() -> None:
    # Of two ranks with 10 and 30 ns in every step, the time per step of a rank is 20 ns.
    rows = (
        lasting(0, 10, "g", family="gemm"),
        lasting(20, 5, "c", family="copy"),
        lasting(100, 20, "g", family="gemm"),
    )
    after = kernels(lasting(0, 30, "g", family="gemm"), lasting(100, 30, "g", family="gemm"))
    found = families(in_steps(kernels(*rows), tiled(2, 100)), in_steps(after, tiled(2, 100)))
    expected = [["gemm", 15, 30, 15, 2.0], ["copy", 2.5, 0, -2.5, 0.0]]
    assert expected == found.iloc[:, :5].astype(object).to_numpy().tolist()
    assert ["cannot tell", "gone"] == found["verdict"].tolist()
    rows = kernels(
        *(
            lasting(100 * step, 10 + 20 * rank, "a", rank=rank)
            for step in range(3)
            for rank in range(2)
        )
    )
    inside = in_steps(rows, of_ranks(tiled(3, 100), tiled(3, 100, rank=1)))
    assert [20.0] == families(inside, inside)["before_ns"].tolist()


def test_wrong_kernels() -> None:
    some, stepped = kernels(lasting(0, 9, "a")), training(3, 1)
    kept = stepped.copy()
    with pytest.raises(ValueError, match="some have a column step and some have none"):
        compare.kernels(some, stepped)
    with pytest.raises(SchemaError, match="'KERNELS' does not match"):
        compare.kernels(API_CALLS.empty(), some)
    compare.kernels(stepped, stepped)
    pd.testing.assert_frame_equal(kept, stepped)


def profile(*calls: tuple[int, int, str, float, float]) -> Profile:
    """A main thread with calls (node, parent, name, inclusive, exclusive) in CPU seconds."""
    rows = [
        {"node": 1, "name": MAIN},
        *({"node": n, "parent": p, "name": name} for n, p, name, *_ in calls),
    ]
    whole = sum(inclusive for _, parent, _, inclusive, _ in calls if parent == 1)
    metrics = [
        (1, "CPUTIME", "s", whole, 0.0),
        *((n, "CPUTIME", "s", i, e) for n, _, _, i, e in calls),
    ]
    return calltree(*rows), call_metrics(*metrics)


BEFORE = profile(
    (2, 1, "train", 9.0, 1.0), (3, 2, "load", 5.0, 5.0), (4, 2, "mm<float>(int)", 3.0, 3.0)
)
AFTER = profile(
    (7, 1, "train", 7.0, 1.0), (9, 7, "mm<half>(long)", 4.0, 4.0), (8, 7, "prefetch", 2.0, 2.0)
)


def test_paths_by_hand() -> None:
    """load (5 s) is gone, prefetch (2 s) is new, mm takes 1 s more whatever its arguments, train itself 1 s."""
    # 9 s before, 7 s after: what moved along all paths sums to -2 s.
    found = paths(BEFORE, AFTER, metric="CPUTIME").set_index("name")
    expected = {
        "load": "gone",
        "prefetch": "new",
        "mm": "changed",
        "train": "changed",
        MAIN: "changed",
    }
    assert expected == found["status"].to_dict()
    assert ["load", "prefetch", "mm"] == found.index[:3].tolist()
    assert [3.0, 4.0, 1.0, 4 / 3] == found.loc[
        "mm", ["before", "after", "difference", "ratio"]
    ].tolist()
    assert [9.0, 7.0] == found.loc["train", ["inclusive_before", "inclusive_after"]].tolist()
    assert f"{MAIN} > train > load" == found.loc["load", "path"]
    assert [2, 1, 0] == found.loc[["load", "train", MAIN], "depth"].tolist()
    assert -2.0 == pytest.approx(found["difference"].sum())


def test_lines_and_loops_belong_to_their_function() -> None:
    main, f = {"node": 1, "name": MAIN}, {"node": 2, "parent": 1, "name": "f"}
    lines = ({"node": 3, "parent": 2, "name": f"f.py:{line}", "kind": "line"} for line in (12, 15))
    spent = [
        (n, "CPUTIME", "s", i, e)
        for n, i, e in ((1, 3.0, 0.0), (2, 3.0, 0.0), (3, 3.0, 2.0), (4, 1.0, 1.0))
    ]
    trees = [
        (calltree(main, f, line, {"node": 4, "parent": 3, "name": "g"}), call_metrics(*spent))
        for line in lines
    ]
    found = paths(*trees, metric="CPUTIME").sort_values("depth").set_index("name")
    assert {MAIN: "same", "f": "same", "g": "same"} == (statuses := found["status"].to_dict())
    assert [MAIN, "f", "g"] == list(statuses)
    assert [2.0, 3.0] == found.loc["f", ["before", "inclusive_before"]].tolist()


def test_what_tells_paths_apart() -> None:
    # Below a GPU operation names are short names: two functors are two kernels.
    one = profile((2, 1, "f", 3.0, 1.0), (3, 2, "f", 2.0, 2.0), (4, 1, "f", 5.0, 5.0))
    found = paths(one, one, metric="CPUTIME").set_index("path")[["before", "inclusive_before"]]
    assert [[6.0, 8.0], [2.0, 2.0]] == found.loc[
        [f"{MAIN} > f", f"{MAIN} > f > f"]
    ].to_numpy().tolist()
    functors = "gpu_kernel<Add>(float*)", "gpu_kernel<Mul>(float*)"
    rows = [
        {"node": 1, "name": MAIN},
        {"node": 2, "parent": 1, "name": "<gpu kernel>", "kind": "gpu_operation"},
    ]
    rows += [{"node": 3 + i, "parent": 2, "name": name} for i, name in enumerate(functors)]
    one = calltree(*rows), call_metrics(*((n, "GKER", "s", 1.0, 1.0) for n in (3, 4)))
    assert 2 == paths(one, one, metric="GKER")["name"].nunique()


def test_no_and_wrong_paths() -> None:
    # A metric that was not recorded, units that differ and foreign tables are refused.
    nothing = CALLTREE.empty(), CALL_METRICS.empty()
    pd.testing.assert_frame_equal(PATHS.empty(), paths(nothing, nothing, metric="CPUTIME"))
    assert {"gone"} == set(paths(BEFORE, nothing, metric="CPUTIME")["status"])
    cycles = AFTER[0], call_metrics((7, "CPUTIME", "cycles", 1.0, 1.0))
    for before, after, metric, error, why in (
        (BEFORE, AFTER, "GPUOP", ValueError, "metric: 'GPUOP' is not one of"),
        (BEFORE, cycles, "CPUTIME", ValueError, "is in cycles and s"),
        ((AFTER[1], AFTER[1]), AFTER, "CPUTIME", SchemaError, "'CALLTREE' does not match"),
    ):
        with pytest.raises(error, match=why):
            paths(before, after, metric=metric)


def test_samples_by_hand() -> None:
    before = together(
        sampled(power_w=[100, 100]), sampled(gpu=1, power_w=[200, 200], temperature_c=[50, 50])
    )
    found = samples(before, sampled(power_w=[300, 300, 300])).set_index("metric")
    assert [150.0, 300.0, 150.0, 2.0] == found.loc["power_w"].tolist()
    assert 50.0 == found.loc["temperature_c", "before"]
    assert np.isnan(found.loc["temperature_c", "after"])
    assert samples(SAMPLES.empty(), SAMPLES.empty()).empty
    with pytest.raises(SchemaError, match="'SAMPLES' does not match"):
        samples(CALLTREE.empty(), SAMPLES.empty())
