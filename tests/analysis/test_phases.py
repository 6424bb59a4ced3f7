"""Start-up, loop, pauses and end: worked by hand, on real captures, and by what must not change them."""

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels, known, lasting, os_calls, python_calls, ranges

import perfkit
from perfkit.analysis.completeness import STRETCHES
from perfkit.analysis.phases import CHECKPOINT, OTHER, PHASES, phases
from perfkit.errors import PerfkitError
from perfkit.tables import API_CALLS, COPIES, KERNELS, OPS, OS_CALLS, PYTHON_CALLS, RANGES

MS, MINUTES = 1_000_000, 600_000_000_000
TABLES = {
    "kernels": KERNELS,
    "copies": COPIES,
    "api_calls": API_CALLS,
    "ranges": RANGES,
    "ops": OPS,
}
TABLES |= {"python_calls": PYTHON_CALLS, "os_calls": OS_CALLS}
Recording = dict[str, pd.DataFrame]
LARGEST = 20_000_000  # bytes of a capture that is read here
LOOPS = (  # captures with a loop, found by kernels, by a range, by profiler steps of one rank and of two
    "nsys/IkerCanut__fire_spread__report1.sqlite",
    "nsys/PolPuigPuy__OpenACC_Project_PolPuig__report3.sqlite",
    "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
    "torch/HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "torch/kineto__resnet50_num_workers_4__worker0.1623213129365.pt.trace.json.gz",
    "torch/sidnb13__torch-profiling-tutorial__transformer",
)


@cache
def recorded(path: Path) -> Recording:
    run = perfkit.load(path)
    return {name: getattr(run, name) for name in TABLES}


def of(**tables: pd.DataFrame) -> pd.DataFrame:
    """PHASES of tables, of which those not named are empty."""
    every = {name: table.empty() for name, table in TABLES.items()} | tables
    return phases(every.pop("kernels"), every.pop("copies"), **every)


def loop(starts: list[int], names: str = "abc", each: int = MS) -> list[dict[str, Any]]:
    """Repetitions that begin at these ms, each a kernel of `each` ns for every letter, one after the other."""
    places = [(start * MS + n * each, name) for start in starts for n, name in enumerate(names)]
    return [lasting(start, each, name) for start, name in places]


# Worked by hand.


def test_what_comes_before_and_after_the_repetitions_is_start_up_and_end() -> None:
    """A copy from 0 to 50 ms, repetitions of 4 ms from 60 ms on, a copy from 100 to 130 ms."""
    moved = copies(
        lasting(0, 50 * MS),
        lasting(100 * MS, 30 * MS, direction="D2H"),
    )
    found = of(kernels=kernels(*loop([60 + 4 * n for n in range(10)])), copies=moved)
    assert known(found, "phase", "start_ns", "dur_ns", "repetitions") == [
        ("start_up", 0, 60 * MS, None),
        ("loop", 60 * MS, 39 * MS, 10),
        ("end", 99 * MS, 31 * MS, None),
    ]


def test_the_busy_time_of_a_phase_is_that_of_all_gpus_of_the_rank() -> None:
    rows = loop([4 * n for n in range(10)])
    found = of(kernels=kernels(*rows, *({**row, "gpu": 1} for row in rows)))
    assert known(found, "phase", "busy_ns") == [("loop", 2 * 30 * MS)]


def test_memsets_kernels_and_copies_that_repeat_are_one_loop() -> None:
    at = [1000 * n for n in range(90)]
    sets = [lasting(start, 100, direction="memset") for start in at]
    back = [lasting(start + 600, 100, direction="D2H") for start in at]
    found = of(
        kernels=kernels(*(lasting(s + 200, 300) for s in at)),
        copies=copies(*sets, *back),
    )
    assert known(found, "phase", "repetitions", "how", "name") == [
        ("loop", 90, "kernels", "memset, work, copy D2H")
    ]


@pytest.mark.parametrize("seed", range(5))
def test_jitter_and_another_operation_now_and_then_leave_one_loop(seed: int) -> None:
    """Each repetition lasts 4 to 5 ms, and every seventh has one kernel more."""
    random = np.random.default_rng(seed)
    begin = np.cumsum(random.integers(4 * MS, 5 * MS, 60))
    rows = [lasting(int(s) + n * MS, MS, name) for s in begin for n, name in enumerate("abc")]
    rows += [lasting(int(s) + 3 * MS, MS // 2, "d") for s in begin[::7]]
    found = of(kernels=kernels(*rows))
    assert found["repetitions"].sum() >= 59
    assert known(found, "phase").count(("loop",)) == 1


def test_time_of_the_profiler_makes_no_second_kind_of_steps() -> None:
    """Steps of 4 ms; the profiler flushes its buffer for 6 ms after every fifth, while the GPU waits."""
    starts = [4 * n + 6 * (n // 5) for n in range(40)]
    flushes = [lasting((20 * n + 6 * (n - 1)) * MS, 6 * MS) for n in range(1, 8)]
    own = STRETCHES.make(pd.DataFrame(flushes).assign(rank=0, gpu=0))
    rows = kernels(*loop(starts))
    assert 2 == of(kernels=rows)["kind"].nunique()
    assert 0 == of(kernels=rows, collecting=own)["kind"].nunique()


def test_slow_first_repetitions_are_start_up_and_counted() -> None:
    """Two repetitions of 20 ms, then ten of 4 ms."""
    found = of(kernels=kernels(*loop([0, 20, *(40 + 4 * n for n in range(10))])))
    assert known(found, "phase", "dur_ns", "name")[0] == (
        "start_up",
        40 * MS,
        "2 slow first repetitions",
    )
    assert known(found, "phase", "repetitions")[1] == ("loop", 10)


def test_a_slow_repetition_in_the_middle_is_no_start_up() -> None:
    found = of(kernels=kernels(*loop([*range(0, 40, 4), *range(46, 86, 4)])))
    assert set(found["phase"]) <= {"loop", "pause"}


@pytest.mark.parametrize(("count", "phase"), [(2, "whole"), (3, "loop")])
def test_two_ranges_that_hold_less_than_half_of_the_work_are_no_loop(
    count: int, phase: str
) -> None:
    """Ranges of 10 ms with 5 ms of work each, and 40 ms of other work after them."""
    marked = ranges(*({"start_ns": 10 * n * MS, "dur_ns": 10 * MS} for n in range(count)))
    steps = loop([10 * n for n in range(count)], "abcde")
    calls = api_calls(*({"start_ns": 10 * n * MS, "dur_ns": 1} for n in range(count)))
    other = [{"start_ns": (10 * count + 10) * MS, "dur_ns": 40 * MS, "name": "other"}]
    found = of(kernels=kernels(*steps, *other), ranges=marked, api_calls=calls)
    assert phase == found["phase"].iloc[0]


def test_prefill_and_decoding_are_two_kinds_of_work() -> None:
    """A prefill of 40 kernels of its own over 40 ms, then decoding; both are loops, none is start-up."""
    prefill = [lasting(n * MS, MS, f"prefill {n % 5}") for n in range(40)]
    found = of(kernels=kernels(*prefill, *loop([40 + 7 * n for n in range(20)], "abcdef")))
    assert known(found, "phase", "repetitions", "kind")[0] == ("loop", 1, OTHER)
    assert found["phase"].eq("loop").all()


def test_loading_a_model_before_the_loop_is_start_up() -> None:
    """The innocent twin: copies that last as long, and few kernels."""
    moved = [lasting(n * MS, MS) for n in range(40)]
    found = of(
        kernels=kernels(*loop([40 + 7 * n for n in range(20)], "abcdef")), copies=copies(*moved)
    )
    assert known(found, "phase", "dur_ns")[0] == ("start_up", 40 * MS)


def test_a_pause_in_the_loop_is_told_apart() -> None:
    found = of(kernels=kernels(*loop([*range(0, 40, 4), *range(540, 580, 4)])))
    assert known(found, "phase", "start_ns", "dur_ns", "repetitions") == [
        ("loop", 0, 39 * MS, 10),
        ("pause", 39 * MS, 501 * MS, None),
        ("loop", 540 * MS, 39 * MS, 10),
    ]


def test_what_outlasts_all_the_rest_is_a_pause_beside_other_gaps() -> None:
    """Two gaps of 6 ms are as long as the work; ten minutes are a pause even among two repetitions."""
    marked = ranges(
        lasting(0, 20 * MS, "step", kind="step"),
        lasting(20 * MS, MINUTES + 20 * MS, "step", kind="step"),
    )
    found = of(kernels=kernels(*loop([0, 9, 20]), *loop([MINUTES // MS + 29])), ranges=marked)
    pauses = found[found["phase"] == "pause"]
    assert [(23 * MS, MINUTES + 6 * MS)] == known(pauses, "start_ns", "dur_ns")


def test_a_slow_first_step_counts_with_the_time_before_its_first_operation() -> None:
    """The first step lasts 16 ms and its kernels 3, as long as the later steps."""
    begun = [0, 16, 20, 24, 28, 32, 36]
    lengths = [16, *[4] * 6]
    marked = [
        lasting(at * MS, dur * MS, "step", kind="step")
        for at, dur in zip(begun, lengths, strict=True)
    ]
    found = of(kernels=kernels(*loop([13, *begun[1:]])), ranges=ranges(*marked))
    assert [("start_up", 1), ("loop", 6)] == known(found, "phase", "repetitions")


def test_a_gap_in_each_repetition_is_no_pause() -> None:
    found = of(kernels=kernels(*loop(list(range(0, 500, 50)))))
    assert known(found, "phase", "repetitions") == [("loop", 10)]


def test_one_long_gap_without_a_loop_is_one_pause() -> None:
    rows = [lasting(at, MS, name) for at, name in ((0, "a"), (2 * MS, "b"), (90 * MS, "c"))]
    found = of(kernels=kernels(*rows))
    assert known(found, "phase", "start_ns", "dur_ns") == [
        ("whole", 0, 3 * MS),
        ("pause", 3 * MS, 87 * MS),
        ("whole", 90 * MS, MS),
    ]


def test_gaps_of_like_length_are_no_pauses() -> None:
    names = "abdfcegh"
    found = of(kernels=kernels(*(lasting(5 * n * MS, MS, x) for n, x in enumerate(names))))
    assert known(found, "phase") == [("whole",)]


def test_steps_of_two_lengths_are_two_kinds() -> None:
    """Two steps of 115 ms and three of 1,050 ms, back to back."""
    edges = [0, 115, 230, 1280, 2330, 3380]
    spans = list(pairwise(edges))
    named = [lasting(a * MS, (b - a) * MS, f"step {n}") for n, (a, b) in enumerate(spans)]
    rows = [lasting(a * MS, (b - a) * MS) for a, b in spans]
    found = of(kernels=kernels(*rows), ranges=ranges(*named))
    assert known(found, "phase", "kind", "repetitions", "dur_ns") == [
        ("loop", "about 115 ms", 2, 230 * MS),
        ("loop", "about 1.05 s", 3, 3150 * MS),
    ]


def test_steps_of_a_cpu_that_runs_ahead_are_moved_to_the_gpu() -> None:
    """The CPU launches a step each ms; the GPU takes 10 ms for each, from 1 ms on."""
    rows = [lasting((1 + 10 * n) * MS, 10 * MS, correlation=n) for n in range(5)]
    calls = [lasting(n * MS + MS // 2, 1000, correlation=n) for n in range(5)]
    named = [lasting(n * MS, MS, f"step {n}") for n in range(5)]
    found = of(kernels=kernels(*rows), api_calls=api_calls(*calls), ranges=ranges(*named))
    assert known(found, "phase", "start_ns", "dur_ns", "repetitions", "how") == [
        ("loop", MS, 50 * MS, 5, "nvtx")
    ]


def test_layers_of_one_call_of_a_module_are_no_repetitions() -> None:
    rows = loop([4 * n for n in range(10)])
    blocks = [lasting(4 * n * MS, 4 * MS, "nn.Module: Block_0", depth=1) for n in range(10)]
    calls = python_calls(lasting(0, 50 * MS, "nn.Module: Model_0"), *blocks)
    found = of(kernels=kernels(*rows), python_calls=calls)
    assert known(found, "phase", "how", "name") == [("whole", "module", "nn.Module: Model_0")]


def test_calls_of_one_outermost_module_are_repetitions() -> None:
    begun = [4 * n * MS for n in range(10)]
    calls = python_calls(*(lasting(start, 3 * MS, "nn.Module: Model_0") for start in begun))
    found = of(kernels=kernels(*loop([4 * n for n in range(10)])), python_calls=calls)
    assert known(found, "phase", "repetitions", "how") == [("loop", 10, "module")]


@pytest.mark.parametrize(
    ("name", "phase"), [("prefill", "whole"), ("5 steps", "loop"), ("main", "loop")]
)
def test_only_a_range_of_one_step_holds_layers(name: str, phase: str) -> None:
    around = ranges(lasting(0, 50 * MS, name))
    assert known(
        of(kernels=kernels(*loop([4 * n for n in range(10)])), ranges=around), "phase"
    ) == [(phase,)]


def saving(every: list[int]) -> Recording:
    """20 steps of 4 ms, after some of which 20 ms of copies to the host and writes follow; on one thread."""
    at, begun, moved, written = 0, [], [], []
    for step in range(20):
        begun.append(at)
        at += 4
        if step in every:
            moved.append(lasting((at - 1) * MS, 2 * MS, direction="D2H", bytes=10**8))
            written.append(lasting(at * MS, 20 * MS, "write"))
            at += 20
    tables = {"kernels": kernels(*loop(begun)), "copies": copies(*moved)}
    return {**tables, "os_calls": os_calls(*written)}


def test_a_checkpoint_in_the_loop_is_a_pause() -> None:
    found = of(**saving([9]))
    assert known(found, "phase", "repetitions", "name")[1] == ("pause", None, CHECKPOINT)


def test_what_saves_by_its_name_after_the_last_step_is_a_pause() -> None:
    named = ranges(lasting(80 * MS, 20 * MS, "save_checkpoint"))
    found = of(**saving([19]), ranges=named)
    assert known(found, "phase", "name")[-1] == ("pause", CHECKPOINT)


def test_files_written_after_the_last_step_are_its_end() -> None:
    """Results are written then, too: one write at the end shows no habit."""
    found = of(**saving([19]))
    assert known(found, "phase", "name")[-1] == ("end", None)


def test_saving_in_each_step_is_part_of_the_loop() -> None:
    found = of(**saving([*range(20)]))
    assert "pause" not in set(found["phase"].iloc[:-1])


def test_a_recording_without_work_of_a_gpu_has_no_phases() -> None:
    assert of(ranges=ranges(lasting(0, MS))).empty


# Real captures, against SQL and hand calculation (the values are those of the files themselves).


def shown(profiles: Path, path: str) -> pd.DataFrame:
    if not (profiles / path).exists():
        pytest.skip(f"{path} is not among the captures")
    return of(**recorded(profiles / path))


def test_the_first_launch_of_fire_spread_is_start_up(profiles: Path) -> None:
    """SQL: 90 times memset, kernel and copy of 4 bytes; the first memset after the start-up starts at 273.706405 ms."""
    found = shown(profiles, "nsys/IkerCanut__fire_spread__report1.sqlite").set_index("phase")
    assert found.loc["loop", "repetitions"] == 88
    assert found.loc["start_up", "name"] == "2 slow first repetitions"
    assert found.loc["start_up", "start_ns"] == 257_368_621
    assert 0.35 < found.loc["loop", "busy_ns"] / found.loc["loop", "dur_ns"] < 0.46


def test_the_pause_of_cuda_kernels_is_one(profiles: Path) -> None:
    """SQL: 422.8 ms busy, a gap of 615,749.6 ms from 1,820.3 ms on in 616,363.5 ms."""
    found = shown(profiles, "nsys/florianmattana__CUDA-Kernels__prof.sqlite")
    assert known(found, "phase") == [("whole",), ("pause",), ("whole",)]
    assert known(found, "start_ns", "dur_ns")[1] == (1_820_287_818, 615_749_604_812)
    judged = found[found["phase"] == "whole"]
    assert round(judged["busy_ns"].sum() / judged["dur_ns"].sum(), 2) == 0.69


def test_copies_of_the_sorted_data_lie_outside_its_loop(profiles: Path) -> None:
    path = "nsys/annikola__cuda_bitonic_sort__report1.sqlite"
    found = shown(profiles, path).set_index("phase")
    moved = recorded(profiles / path)["copies"]
    begin, stop = (
        found.loc["loop", "start_ns"],
        found.loc["loop", "start_ns"] + found.loc["loop", "dur_ns"],
    )
    assert found.loc["loop", "repetitions"] == 136
    assert ((moved["start_ns"] + moved["dur_ns"] <= begin) | (moved["start_ns"] >= stop)).all()


@pytest.mark.parametrize(
    ("path", "module"),
    [
        (
            "torch/CodingPlatelets__SwitchTransformers__trace_8batch.json.gz",
            "nn.Module: SwitchTransformer_0",
        ),
        ("torch/TraceLens__b200__eager_trace.json.gz", "nn.Module: GptOssForCausalLM_0"),
    ],
)
def test_one_pass_of_a_model_is_no_loop_of_its_layers(
    profiles: Path, path: str, module: str
) -> None:
    found = shown(profiles, path)
    assert known(found, "phase", "how", "name") == [("whole", "module", module)]


def test_a_start_up_of_pytorch_has_no_loop(profiles: Path) -> None:
    assert "loop" not in set(shown(profiles, "nsys/Qcompiler__MIXQ__src_report1.sqlite")["phase"])


def test_five_equal_products_are_a_loop_of_five(profiles: Path) -> None:
    found = shown(profiles, "torch/JeremyMorlier__GPUModel__trace2.json")
    assert known(found, "phase", "repetitions") == [("loop", 5)]


def test_many_gaps_of_like_length_are_no_pause(profiles: Path) -> None:
    assert "pause" not in set(shown(profiles, LOOPS[1])["phase"])


def captures(profiles: Path) -> list[Path]:
    """Every third capture of a timeline that is small enough, and folders of them."""
    found = [*(profiles / "nsys").glob("*.sqlite"), *(profiles / "torch").iterdir()]
    sizes = (
        (path, sum(file.stat().st_size for file in [path, *path.rglob("*")])) for path in found
    )
    return sorted(path for path, size in sizes if size <= LARGEST)[::3]


def test_the_phases_of_each_capture_cover_the_span_of_each_rank_exactly_once(
    profiles: Path,
) -> None:
    count = 0
    for path in captures(profiles):
        try:
            tables = recorded(path)
        except PerfkitError:
            continue  # files that are broken on purpose, or no timeline
        found = PHASES.check(of(**tables))
        every = pd.concat(
            [tables[name][["rank", "start_ns", "dur_ns"]] for name in ("kernels", "copies")]
        )
        for rank, rows in every.assign(end=every["start_ns"] + every["dur_ns"]).groupby("rank"):
            mine = found[found["rank"] == rank]
            edges = [*mine["start_ns"], int((mine["start_ns"] + mine["dur_ns"]).max())]
            assert mine["dur_ns"].tolist() == np.diff(edges).tolist(), path.name
            assert (edges[0], edges[-1]) == (rows["start_ns"].min(), rows["end"].max()), path.name
            count += 1
    assert count > 15


# What must not change them; other orders, clocks and numbers are among the relations of whole runs.


def later(recording: Recording, at: int, by: int) -> Recording:
    """Everything that starts at a moment or after it starts later; what lasts over it lasts longer."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        is_later = frame["start_ns"] >= at
        is_longer = ~is_later & (frame["start_ns"] + frame["dur_ns"] > at)
        frame["start_ns"] += by * is_later
        frame["dur_ns"] += by * is_longer
        if "self_ns" in frame:
            frame["self_ns"] = frame[["self_ns", "dur_ns"]].min(axis=1)
        return frame

    return {name: TABLES[name].make(change(frame.copy())) for name, frame in recording.items()}


def first_loop(found: pd.DataFrame) -> tuple[int, int]:
    rows = found[found["phase"] == "loop"]
    return int(rows["start_ns"].min()), int((rows["start_ns"] + rows["dur_ns"]).max())


def middle_gap(recording: Recording, first: int, last: int) -> int:
    """A moment near the middle of a loop at which no GPU works."""
    every = pd.concat([recording[name][["start_ns", "dur_ns"]] for name in ("kernels", "copies")])
    every = every.sort_values("start_ns")
    ended = (every["start_ns"] + every["dur_ns"]).cummax().shift()
    starts = every["start_ns"][
        (every["start_ns"] > ended) & every["start_ns"].between(first, last)
    ].to_numpy()
    return int(starts[np.abs(starts - (first + last) // 2).argmin()])


@pytest.fixture(params=LOOPS, ids=lambda path: json.dumps(path.rpartition("/")[2][:20]))
def real(request: pytest.FixtureRequest, profiles: Path) -> Recording:
    if not (profiles / request.param).exists():
        pytest.skip(f"{request.param} is not among the captures")
    return recorded(profiles / request.param)


def test_a_longer_start_up_changes_the_start_up_alone(real: Recording) -> None:
    one = {name: frame[frame["rank"] == 0] for name, frame in real.items()}
    before = of(**one)
    if "start_up" not in set(before["phase"]):
        pytest.skip("the recording has no start-up")
    slow = str(before["name"].iloc[0]).startswith(("1", "2"))
    at = int(one["kernels"]["start_ns"].iloc[0]) if slow else first_loop(before)[0]
    longer = of(**later(one, at, MINUTES))
    columns = ("phase", "dur_ns", "repetitions", "kind", "busy_ns")
    assert known(longer, *columns)[1:] == known(before, *columns)[1:]


def test_a_pause_of_ten_minutes_leaves_the_repetitions(real: Recording) -> None:
    one = {name: frame[frame["rank"] == 0] for name, frame in real.items()}
    before = of(**one)
    at = middle_gap(one, *first_loop(before))
    after = of(**later(one, at, MINUTES))
    pauses = after[after["phase"] == "pause"]
    assert pauses["dur_ns"].max() >= MINUTES
    total = [frame.loc[frame["phase"] == "loop", "repetitions"].sum() for frame in (before, after)]
    assert total[0] == total[1]
    rest = [frame.loc[frame["phase"] != "pause", "dur_ns"].sum() for frame in (before, after)]
    assert rest[1] <= rest[0]


def test_the_loop_twice_is_the_same_loop() -> None:
    once, twice = (of(kernels=kernels(*loop([4 * n for n in range(count)]))) for count in (10, 20))
    assert known(once, "phase", "repetitions", "name") == [("loop", 10, "a, b, c")]
    assert known(twice, "phase", "repetitions", "name") == [("loop", 20, "a, b, c")]


def test_work_long_after_the_loop_changes_the_end_alone() -> None:
    rows = loop([4 * n for n in range(10)])
    late = lasting(MINUTES, MS, direction="memset")
    found = of(kernels=kernels(*rows), copies=copies(late))
    assert known(found, "phase", "start_ns", "dur_ns")[0] == ("loop", 0, 39 * MS)
    assert known(found, "phase")[1:] == [("end",)]
