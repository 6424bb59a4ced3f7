"""Replays of programs with and without changes: by hand, of real runs, and the longest path."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import loaded, us
from frames import api_calls, copies, kernels, lasting
from planted.program import Settings, simulated
from readers.torch_real import (
    EPOCH_DECIMALS,
    GRAPHS_A100,
    RESNET_MI300,
    TRACES,
    V100_AFTER,
    V100_BEFORE,
)
from real import WITH_KERNELS

import perfkit
from perfkit.analysis import steps
from perfkit.analysis.whatif import Chains, Replay, changed, inside, prepared, replay, runs, saved
from perfkit.analysis.whatif.changes import Calls, Change, Copies, Host, Kernels, Synchronisations
from perfkit.analysis.whatif.program import NONE, recorded
from perfkit.analysis.whatif.replay import Edges, around, meetings, moments, stretch
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS

US = 1_000
SPANS = ["measured_ns", "unchanged_ns", "span_ns", "low_ns", "high_ns"]
RANKS = [f"HTA__trace_filter__sampled_rank-{rank}.json.gz" for rank in (0, 1)]
CLOVERLEAF = "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite"
JACOBI = "openhackathons-org__nways_accelerated_programming__jacobi_report.sqlite"
MPI = "openhackathons-org__gpubootcamp__mpi_report1.sqlite"
VLLM = "TraceLens__vllm_decode_full__graph_execution.json.gz"
BASELINE = "openhackathons-org__AI-Profiler__baseline.sqlite"


def spans(found: Replay) -> tuple[float, ...]:
    """All spans of the run, us."""
    return tuple(getattr(found, span) / US for span in SPANS)


WORK = kernels(us(10, 110, 1, name="a"), us(112, 162, 2, name="b"), us(190, 200, 3, name="c"))
CALLS = api_calls(
    us(0, 5, 1), us(8, 13, 2), us(15, 170, name="cudaStreamSynchronize"), us(180, 185, 3)
)


@pytest.mark.parametrize(
    ("changes", "expected_us"),
    [
        # a [10, 210), b 2 us behind it [212, 312); the call returns 8 us later at 320; c is called 10 us later, starts
        # 10 us after that at 340, and ends at 360.
        ((Kernels(2),), 350),
        ((Kernels(1),), 190),
        ((), 190),
        # a [10, 60), b [62, 112), return at 120, c called at 130 [140, 150).
        ((Kernels(0.5, pattern="^a$"),), 140),
        # a takes no time; b starts 10 us after its call at 8 [18, 68), return at 76, c called at 86 [96, 106).
        ((Kernels(0, pattern="^a$"),), 96),
        # The call takes no time at 15; c, called at 25, waits for its stream: [164, 174).
        ((Synchronisations(),), 164),
        # As before with a [10, 210), b [212, 312), c [314, 334).
        ((Synchronisations(), Kernels(2)), 324),
        ((Kernels(2), Synchronisations()), 324),
    ],
)
def test_changed_by_hand(changes: tuple[Change, ...], expected_us: int) -> None:
    found = replay(WORK, COPIES.empty(), CALLS, changes=changes)
    assert (190, 190, expected_us) == spans(found)[:3]
    run = prepared(WORK, COPIES.empty(), CALLS)
    changed(run, [Kernels(3), Synchronisations()])  # leaves what is asked next as it is
    assert spans(found) == spans(changed(run, changes))


def test_calls_by_name_may_go_but_launches_stay() -> None:
    """As without synchronisations; a launch stays where it is."""
    assert 164 == spans(replay(WORK, COPIES.empty(), CALLS, changes=[Calls("Synchronize")]))[2]
    assert (0,) == replay(WORK, COPIES.empty(), CALLS, changes=[Calls("Launch")]).touched


def test_what_a_change_saves_lies_before_the_operation_that_starts_earlier() -> None:
    """Without the wait c starts 2 us behind b, not 28."""
    found = saved(prepared(WORK, COPIES.empty(), CALLS), [Synchronisations()])
    assert [0, 0, 26 * US] == found["idle_ns"].tolist()
    assert [0, 0, 0] == found["dur_ns"].tolist()


def test_kernels_that_were_never_queued_are_a_usual_gap_apart() -> None:
    """Each kernel of 100 us is waited for. Without the waits they run one after another, 1 us apart."""
    work = kernels(us(10, 110, 1, name="a"), us(140, 240, 2, name="b"), us(270, 370, 3, name="c"))
    wait = {"name": "cudaStreamSynchronize"}
    calls = api_calls(
        us(0, 5, 1), us(6, 112, **wait), us(130, 135, 2), us(136, 242, **wait), us(260, 265, 3)
    )
    assert 302 == spans(replay(work, COPIES.empty(), calls, changes=[Synchronisations()]))[2]


def test_each_change_tells_how_many_kernels_or_calls_it_concerns() -> None:
    changes = (
        Kernels(0.5, pattern="a|b"),
        Kernels(0.5, family="gemm"),
        Synchronisations(),
        Synchronisations("Device"),
    )
    assert (2, 0, 1, 0) == replay(WORK, COPIES.empty(), CALLS, changes=changes).touched
    assert (88, 88, 88) == spans(replay(WORK, COPIES.empty(), CALLS, window=(100 * US, 300 * US)))[
        :3
    ]  # b and c


def test_low_and_high() -> None:
    # 2 of 1002 us: low leaves 100 out, high keeps them.
    late = kernels(
        *WORK[["start_ns", "dur_ns", "correlation"]].to_dict("records"), us(315, 10_315, 4)
    )
    calls = api_calls(
        *CALLS[["start_ns", "dur_ns", "correlation", "name"]].to_dict("records"), us(205, 210, 4)
    )
    assert (10_305, 10_205, 10_205, 10_205, 10_305) == spans(replay(late, COPIES.empty(), calls))


def test_a_delay_that_nothing_explains_is_refused_beyond_30_us() -> None:
    # The third kernel starts 9 us of 199 later than its call allows by more than the GPU's own 30 us: 40 of 230.
    late = kernels(us(10, 110, 1), us(112, 162, 2), us(230, 240, 3))
    why = r"takes 190,000 ns in the model, 230,000 ns in the capture.*Record all GPUs"
    with pytest.raises(PerfkitError, match=why):
        replay(late, COPIES.empty(), CALLS)
    late = kernels(us(10, 110, 1), us(112, 162, 2), us(218, 228, 3))
    assert (218, 218, 218) == spans(replay(late, COPIES.empty(), CALLS))[:3]


def test_another_stream_explains_a_delay() -> None:
    work = kernels(us(10, 110, 1), us(115, 165, 2, stream=8))
    calls = api_calls(us(0, 5, 1), us(8, 13, 2))
    # With a twice as long it starts at 215; low knows of no wait, and has it where it was as its stream's first.
    assert (155, 155, 255) == spans(
        replay(work, COPIES.empty(), calls, changes=[Kernels(2, rows=[0])])
    )[:3]


def test_threads_pass_a_baton() -> None:
    # Thread 2 begins when thread 1 has called three times. 6 us lie between any two calls; without them there are
    # 9 calls of 4 us, the last one at 32 us, and 5 us until its kernel starts: [37, 40), the first one at 5.
    thread = [1, 1, 1, 2, 2, 2, 1, 1, 1]
    calls = api_calls(*(us(10 * i, 10 * i + 4, i + 1, thread=of) for i, of in enumerate(thread)))
    work = kernels(*(us(10 * i + 5, 10 * i + 8, i + 1) for i in range(9)))
    for changes, span_us in (((), 83), ((Host(0, pattern=""),), 35)):
        assert span_us == replay(work, COPIES.empty(), calls, changes=changes).span_ns / US


def test_a_collective_waits_for_the_last_rank() -> None:
    communicates = {"name": "ncclKernel", "family": "communication"}
    other, last = us(10, 60, 1, rank=1, stream=7), us(60, 100, 2, rank=1, stream=7, **communicates)
    work = kernels(us(10, 100, 1, **communicates), other, last)
    calls = api_calls(us(0, 5, 1), us(0, 5, 1, rank=1), us(5, 10, 2, rank=1))
    found = replay(work, COPIES.empty(), calls, changes=[Kernels(0, family="other")])
    assert [90, 90] == (found.ranks["unchanged_ns"] / US).tolist()
    # Its call is at 5, and the least latency seen is 10: it comes at 15, and takes the 40 us it took.
    assert [45, 45] == (found.ranks["span_ns"] / US).tolist()


@pytest.mark.parametrize("calls", [API_CALLS.empty(), CALLS])
def test_nothing_was_run(calls: pd.DataFrame) -> None:
    found = replay(KERNELS.empty(), COPIES.empty(), calls, changes=[Kernels(2), Synchronisations()])
    assert (0, 0, 0, 0, 0) == spans(found)
    assert {"rank": "int32", **dict.fromkeys(SPANS, "int64")} == found.ranks.dtypes.astype(
        str
    ).to_dict()
    assert found.ranks.empty


@pytest.mark.parametrize(
    ("tables", "more", "error", "why"),
    [
        (
            (WORK, API_CALLS.empty()),
            {},
            PerfkitError,
            r"holds no CUDA call.*nsys profile --trace=cuda",
        ),
        ((WORK, CALLS.head(1)), {}, PerfkitError, r"2 of 3 operations have no launch call"),
        (
            (
                kernels(us(10, 50, 1), us(150, 200, 1)),
                api_calls(us(0, 5, 1, name="cudaGraphLaunch")),
            ),
            *(
                {},
                PerfkitError,
                r"100,000 ns of 190,000 ns lie inside CUDA graphs.*--cuda-graph-trace=node",
            ),
        ),
        ((CALLS, CALLS), {}, SchemaError, "KERNELS"),
        ((WORK, WORK), {}, SchemaError, "API_CALLS"),
        ((WORK, CALLS), {"ranges": WORK}, SchemaError, "RANGES"),
        ((WORK, CALLS), {"window": (5, 5)}, ValueError, "does not end after it starts"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    tables: Any, more: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        replay(tables[0], COPIES.empty(), tables[1], **more)


def test_tables_stay_and_copies_are_checked() -> None:
    before = WORK.copy(deep=True), CALLS.copy(deep=True)
    replay(WORK, COPIES.empty(), CALLS, changes=[Kernels(3), Synchronisations()])
    pd.testing.assert_frame_equal(before[0], WORK)
    pd.testing.assert_frame_equal(before[1], CALLS)
    with pytest.raises(SchemaError, match="COPIES"):
        replay(WORK, CALLS, CALLS)


def edges(*triples: tuple[int, int, int]) -> Edges:
    return Edges(*(np.array(column, np.int64) for column in zip(*triples, strict=True)))


@pytest.mark.parametrize(
    ("at", "sort", "pairs", "expected"),
    [
        pytest.param(
            [10, 20, 30], [0] * 3, [(2, 0, 5), (2, 1, 1)], [10, 20, 21], id="the latest decides"
        ),
        pytest.param(
            [10, 20], [0, 0], [(0, 1, 5), (1, 0, 5)], [10, 15], id="what points back is left out"
        ),
        pytest.param(
            [10, 10], [1, 0], [(0, 1, 5), (1, 0, 7)], [15, 10], id="at one time the sort decides"
        ),
        pytest.param([10, 10], [0, 1], [(0, 1, 5), (1, 0, 7)], [10, 17], id="the other way round"),
        pytest.param([10, 20], [0, 0], [(1, 0, NONE)], [10, 20], id="no lag is no edge"),
    ],
)
def test_moments_by_hand(at: list[int], sort: list[int], pairs: Any, expected: list[int]) -> None:
    for split in ([edges(*pairs)], [edges(pair) for pair in pairs]):
        assert expected == moments(np.array(at), np.array(sort), split).tolist()


def test_random_graphs() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        to, source = rng.integers(0, 30, (2, 80))
        lag = rng.integers(-5, 50, 80)
        forward = source < to
        expected = np.where(np.isin(np.arange(30), to[forward]), NONE, np.arange(30) * 10)
        for _ in range(30):
            np.maximum.at(expected, to[forward], expected[source[forward]] + lag[forward])
        assert (
            expected.tolist()
            == moments(np.arange(30) * 10, np.zeros(30, int), [Edges(to, source, lag)]).tolist()
        )


@pytest.mark.parametrize("seed", range(5))
def test_runs_are_the_same_as_one_by_one(seed: int) -> None:
    # Nodes 0 to 59 are operations of three streams, 60 to 63 heads, which stay where they are.
    rng = np.random.default_rng(seed)
    stream = np.sort(rng.integers(0, 3, 60))
    begins = np.diff(stream, prepend=-1) != 0
    after = np.where(begins, 0, rng.integers(1, 30, 60))
    chains = Chains(
        np.arange(60), stream, after, np.sort(rng.integers(60, 64, 60)), rng.integers(1, 2_000, 60)
    )
    other = edges(
        *((int(b), int(a), 40) for a, b in np.sort(rng.choice(60, (6, 2), replace=False), axis=1))
    )
    measured = np.r_[np.arange(60) * 10 + 1_000, np.arange(4) * 200]
    found = runs(chains, np.arange(64), np.isin(np.arange(60), np.r_[other.to, other.source]))
    time = moments(measured, np.zeros(64, int), [other, *found.edges])
    expected = measured.copy()
    for op in range(60):
        launched = expected[chains.head[op]] + chains.launch[op]
        behind = NONE if begins[op] else expected[op - 1] + after[op]
        expected[op] = max(launched, behind, *(expected[other.source[other.to == op]] + 40), NONE)
    assert expected[:60].tolist() == inside(chains, found, time).tolist()
    assert len(found.edges[0].to) < 60


NO_CALL = "have no launch call"
NO_TRACES = (
    "TraceLens__tracediff_test__cpu_op_map.json",
    "cmpark0126__ml-serving__triton_server_trace.json.gz",  # requests to a server
)
REFUSED = {
    "HTA__large_integer_trace__rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz": "holds no CUDA call",
    GRAPHS_A100: "lie inside CUDA graphs",
    "GindaChen__nsys-ai__h100_2gpu_1s.sqlite": NO_CALL,  # cut out of a longer capture
    "NTHU-SC__ISC25-ICON-C__gpu.sqlite": NO_CALL,  # 5,510 of 5,511 copies
    **{
        f"TraceLens__{gpu}__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": NO_CALL
        for gpu in ("h100", "mi300")
    },
    RESNET_MI300: NO_CALL,
    "TraceLens__evals_mi300__gemm_01_compute_few_tiles.json.gz": NO_CALL,
    "HTA__trace_compare__base.json.gz": NO_CALL,  # 16 of 18 operations
}


def replayed(profiles: Path, capture: str, *changes: Host | Kernels) -> Replay:
    run = loaded(profiles / ("nsys" if capture in WITH_KERNELS else "torch") / capture)
    return replay(run.kernels, run.copies, run.api_calls, ranges=run.ranges, changes=changes)


@pytest.mark.parametrize(("capture", "why"), REFUSED.items())
def test_real_runs_that_cannot_be_replayed(profiles: Path, capture: str, why: str) -> None:
    with pytest.raises(PerfkitError, match=why):
        replayed(profiles, capture)


@pytest.mark.parametrize("capture", [c for c in [*WITH_KERNELS, *TRACES] if c not in REFUSED])
@pytest.mark.sampled(3)
def test_real_runs_unchanged(profiles: Path, capture: str) -> None:
    # The model takes as long as was measured, within 2 % for every rank, without and with a change by factor 1.
    found = replayed(profiles, capture, Kernels(1))
    assert found.measured_ns == pytest.approx(found.unchanged_ns, rel=0.02)
    assert (found.unchanged_ns, found.unchanged_ns) == (
        found.span_ns,
        max(found.low_ns, found.span_ns),
    )


def test_every_torch_trace_with_kernels_is_listed(profiles: Path) -> None:
    files = (path for path in (profiles / "torch").rglob("*") if path.is_file())
    names = {str(path.relative_to(profiles / "torch")) for path in files} - {*TRACES}
    for name in sorted(names - {*NO_TRACES}):
        run = perfkit.load(profiles / "torch" / name)
        assert 0 == len(run.kernels) + len(run.copies), name


@pytest.mark.parametrize("capture", [CLOVERLEAF, JACOBI, MPI])
def test_kernels_that_are_waited_for(profiles: Path, capture: str) -> None:
    # Twice the kernels' time is that much more, half of it that much less; 1 % is left for what the CPU does meanwhile.
    run = loaded(profiles / "nsys" / capture)
    kernel_ns = int(run.kernels["dur_ns"].sum())
    for factor in (2, 0.5):
        found = replayed(profiles, capture, Kernels(factor))
        more = (found.span_ns - found.measured_ns) / found.measured_ns
        assert (factor - 1) * kernel_ns / found.measured_ns == pytest.approx(more, abs=0.01)
    assert kernel_ns > 0.7 * found.measured_ns


@pytest.mark.parametrize(
    ("capture", "factor", "span_frac", "abs_frac"),
    [
        (
            VLLM,
            0.1,
            0.1,
            0.01,
        ),  # 421 of 425 kernels are one graph launched ahead, 99.8 % of the time
        # Half of the time the CPU is inside launches, as 1,022 kernels are in the queue; the GPU is busy for 98 %.
        (EPOCH_DECIMALS, 0.5, 0.51, 0.02),
    ],
)
def test_the_gpu_alone_decides(
    capture: str, factor: float, span_frac: float, abs_frac: float, profiles: Path
) -> None:
    found = replayed(profiles, capture, Kernels(factor))
    assert span_frac == pytest.approx(found.span_ns / found.measured_ns, abs=abs_frac)


def test_a_slow_host_does_not_gain_by_faster_kernels(profiles: Path) -> None:
    found = replayed(profiles, BASELINE, Kernels(0.1))  # the GPU is busy for 4 % of the time
    assert 0.99 * found.measured_ns < found.low_ns


def test_the_loader_of_resnet50(profiles: Path) -> None:
    # The same job was recorded with the loader in the program and with four workers.
    found, measured = (
        replayed(profiles, V100_BEFORE, Host(workers=4)),
        replayed(profiles, V100_AFTER),
    )
    assert (876_066_000, 728_481_000) == (found.measured_ns, measured.measured_ns)
    assert measured.measured_ns == pytest.approx(found.span_ns, rel=0.03)


def test_two_ranks_that_meet(profiles: Path) -> None:
    run = perfkit.load([profiles / "torch" / name for name in RANKS])
    kernels = run.kernels
    ops = recorded(kernels, run.copies, run.api_calls).ops
    op, meeting = meetings(
        ops, np.isin(ops.row, np.flatnonzero(kernels["family"] == "communication"))
    )
    met = pd.DataFrame({"rank": ops.rank[op], "end": ops.end[op]}).groupby(meeting)
    assert [2] * 4 == met["rank"].nunique().tolist()
    assert (met["end"].max() - met["end"].min() < 1_000_000).all()
    work = np.flatnonzero((kernels["rank"] == 1) & (kernels["family"] != "communication"))
    found = replay(
        kernels, run.copies, run.api_calls, ranges=run.ranges, changes=[Kernels(30, rows=work)]
    )
    assert found.ranks["measured_ns"].tolist() == pytest.approx(
        found.ranks["unchanged_ns"].tolist(), rel=0.02
    )
    more = (found.ranks["span_ns"] - found.ranks["measured_ns"]).to_numpy()
    assert more[0] == pytest.approx(more[1], rel=0.01)
    added = 29 * int(kernels["dur_ns"].to_numpy()[work].sum())
    assert added - found.measured_ns < more[1] < added  # idle time of rank 1 takes up the rest


def step(number: int, start_us: int, length_us: int, *, rank: int = 0) -> dict[str, Any]:
    times = lasting(US * start_us, US * length_us)
    return {**times, "rank": rank, "step": number, "name": "step", "how": "nvtx", "steady": True}


def work(
    lengths_us: list[int], *, rank: int = 0, family: str = "gemm", every_us: int = 100
) -> list[dict[str, Any]]:
    """One kernel for each length, at the start of its step."""
    starts = range(0, every_us * len(lengths_us), every_us)
    return [
        us(at, at + of, rank=rank, family=family) for at, of in zip(starts, lengths_us, strict=True)
    ]


def even(count: int, *, rank: int = 0, shift_us: int = 0) -> list[dict[str, Any]]:
    return [step(n, 100 * n + shift_us, 100, rank=rank) for n in range(count)]


def found(rows: list[dict[str, Any]], *spans: dict[str, Any], aim: int = 10, **more: Any) -> Any:
    return stretch(
        steps.STEPS.make(pd.DataFrame(rows)),
        kernels(*spans),
        COPIES.empty(),
        aim=aim,
        most=100,
        **more,
    )


def test_the_stretch_by_hand() -> None:
    """20 steps with a kernel of 40 us, then 20 with one of 60: only the middle, 15 to 24, has 50 on average."""
    part = found(even(40), *work([40] * 20 + [60] * 20))
    assert (15, 24, 10, 40) == (part.first, part.last, part.steps, part.of_steps)
    assert (1_500 * US, 2_500 * US) == part.window
    assert (1.0, 0.0) == (part.share_frac, part.apart_frac)


def test_a_stretch_that_is_not_quite_alike_says_by_how_much() -> None:
    # One of 59 us in each eighth step: ten in a row have 1 or 2; with one, 0.25 x 9 us of 1,000 are missing.
    part = found(even(40), *work([59 if n % 8 == 0 else 50 for n in range(40)]))
    assert 0.00225 == pytest.approx(part.apart_frac)


def test_steps_that_are_unlike() -> None:
    halves = ["gemm"] * 20 + ["other"] * 20
    unlike = "the time of (gemm|other) kernels on rank 0 differs from that of all by"
    apart = [10] * 20 + [90] * 20, ["communication"] * 40, "they are unlike"
    for lengths, families, message in (([65] * 40, halves, unlike), apart):
        spans = [
            {**row, "family": family} for row, family in zip(work(lengths), families, strict=True)
        ]
        with pytest.raises(PerfkitError, match=message):
            found(even(40), *spans, aim=11)
    # Copies count too.
    moved = copies(*(us(100 * n, 100 * n + 60, direction="H2D") for n in range(20)))
    table = steps.STEPS.make(pd.DataFrame(even(40)))
    with pytest.raises(PerfkitError, match="the time of H2D copies on rank 0"):
        stretch(table, kernels(*work([50] * 40)), moved, aim=11, most=100)
    # Nine steps; twelve in the first 1,200 of 3,000 us; ten that hold 150 kernels with 100 at most.
    for rows, spans, why in (
        (even(9), work([50] * 9), "steps: 9 steady ones are too few"),
        (even(12), work([100] * 30), r"the steady ones are 40\.0 % of the time, less"),
        (
            [step(n, 300 * n, 300) for n in range(10)],
            work([15] * 150, every_us=20),
            "10 of them have 150 kernels, ",
        ),
    ):
        with pytest.raises(PerfkitError, match=why):
            found(rows, *spans)


def test_only_steps_that_all_ranks_have_and_that_lie_in_the_window_count() -> None:
    rows = [*even(14), *even(14, rank=1, shift_us=10)]
    rows[14]["steady"] = False
    part = found(rows, *work([50] * 14), *work([50] * 14, rank=1), aim=100, window=(0, 1_215 * US))
    assert (1, 11, 11, 11) == (part.first, part.last, part.steps, part.of_steps)
    assert (100 * US, 1_210 * US) == part.window


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (Settings(loading_ns=1_500_000), Host(factor=0.0)),
        (Settings(sync_every=2, cpu_ns=20_000), Synchronisations()),
        (Settings(input_ns=1_000_000), Copies("overlapped")),
        (Settings(kernel_ns=100_000), Kernels(0.5)),
        (
            Settings(ranks=2, reduce_every=5, slow_rank_frac=0.3),
            Kernels(0.5, family="communication"),
        ),
    ],
)
def test_a_stretch_gains_what_the_whole_does(settings: Settings, change: Change) -> None:
    run = simulated(replace(settings, steps=160))
    tables = (run.kernels, run.copies, run.api_calls, run.ranges)
    aim = len(run.kernels) // 4
    part = stretch(
        steps.detect(run.ranges, run.kernels),
        run.kernels,
        run.copies,
        aim=aim,
        most=len(run.kernels),
    )
    work, moved, called, named = around(*tables, part.window)
    assert len(work) < 1.2 * aim
    ratios = []
    for frames, window in ((tables, None), ((work, moved, called, named), part.window)):
        told = replay(*frames[:3], ranges=frames[3], changes=[change], window=window)
        assert told.measured_ns == pytest.approx(told.unchanged_ns, rel=0.02)
        ratios.append(told.span_ns / told.measured_ns)
    assert ratios[0] == pytest.approx(ratios[1], rel=part.doubt_frac)
    assert 0.03 > part.doubt_frac


CAPTURES = [
    "torch/HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "torch/kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz",
    "nsys/openhackathons-org__AI-Profiler__baseline.sqlite",
]


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_rows_around_a_window_are_all_that_a_replay_needs(profiles: Path, capture: str) -> None:
    run = perfkit.load(profiles / capture)
    tables = (run.kernels, run.copies, run.api_calls, run.ranges)
    whole = steps.detect(run.ranges, run.kernels)
    starts = (
        whole["start_ns"].to_numpy()
        if len(whole) > 3
        else np.linspace(*run.kernels["start_ns"].iloc[[0, -1]], 6)
    )
    for first, last in zip(
        starts[1:-3].astype(int).tolist(), starts[4:].astype(int).tolist(), strict=True
    ):
        told = []
        for frames in (tables, around(*tables, (first, last))):
            try:
                answer = replay(
                    *frames[:3], ranges=frames[3], changes=[Host(factor=0.5)], window=(first, last)
                )
                told.append(
                    (
                        answer.measured_ns,
                        answer.unchanged_ns,
                        answer.low_ns,
                        answer.high_ns,
                        answer.touched,
                    )
                )
            except PerfkitError as e:
                told.append(str(e).partition(":")[0])
        assert told[0] == told[1]
