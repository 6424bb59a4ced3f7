"""The framework's rules on evidence that was planted, each by hand, on the case studies and on real traces."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from diagnosis import traces
from diagnosis.traces import BF16, GEMM, MS, US, in_turn, run, told, work
from frames import ranges
from ops import op, python_calls

import perfkit
from perfkit import diagnosis, report
from perfkit.diagnosis import picture
from perfkit.run import Run

GRAPHS = [{"start_ns": i * 200 * US, "dur_ns": US, "name": "cudaGraphLaunch"} for i in range(10)]
FP32 = {"family": "gemm", "kernel": "sgemm", "dtypes": '["float","float"]'}


def share(of: Run | perfkit.Selection, rule: str) -> float:
    """What the run gains at most by what a rule found, as a share of its time."""
    part = told(of)[rule].gain.share
    assert part is not None
    return part


def products(count: int, every: int, length: int, start: int = 5 * US) -> list[dict[str, Any]]:
    """Products that are launched 1 us after each period of `every` ns and start `start` after it."""
    return [
        work("aten::mm", i * every + US, i * every + start, length, **GEMM) for i in range(count)
    ]


def adds(every: int = 20, dur: int = 3, **more: Any) -> list[dict[str, Any]]:
    """A hundred elementwise operators, one every so many us, whose kernels last so many us."""
    return [
        work("aten::add", i * every * US + US, i * every * US + 4 * US, dur * US, **more)
        for i in range(100)
    ]


def test_memory_that_no_step_gives_back() -> None:
    """100 bytes more in each of 12 steps, of which the first is not steady: (10,000 - 2,600) / 100 more until full."""
    growth = told(traces.leaking(100))["memory_growth"]
    assert "Each step keeps 100 B more of the GPU's memory" == growth.title
    assert "After about 74 more steps its memory of 10.0 kB is full." in growth.explanation
    assert not growth.gain.is_known
    for quiet in (traces.leaking(0), traces.leaking(-50), traces.leaking(1)):
        assert "memory_growth" not in told(quiet), "nothing, less, or under 1 % of the peak in all"
    assert "memory_growth" in told(traces.leaking(100, but=5)), "one step of ten may differ"


def test_input_is_told_once() -> None:
    """Where the gaps show their cause the system tells it; without CUDA calls the wait of the steps does.

    The GPU is idle from 100 i to 100 i + 40 ms of steps 0 to 4, in step 0 before its first kernel. The steps take 500
    ms, less than a tenth more than the 460 ms from the first kernel to the last: of these it is idle 160 ms.
    Where no GPU was recorded the gain is of the steps' time, 1 / (1 - 0.4), and no share of the run's. Where the GPU
    works meanwhile nothing waits.
    """
    frames = {
        name: getattr(traces.waiting_for_input(), name.lower())
        for name in ("KERNELS", "OPS", "RANGES")
    }
    waiting = told(traces.of_tables(**frames))["input"]
    assert "Each step waits 40.0 % of its time for data" == waiting.title
    assert ("high", pytest.approx(160 / 460, rel=1e-3)) == (waiting.severity, waiting.gain.share)
    assert "input" not in told(traces.waiting_for_input())
    waiting = told(traces.of_tables(OPS=frames["OPS"], RANGES=frames["RANGES"]))["input"]
    assert ("high", None, pytest.approx(1 / 0.6)) == (
        waiting.severity,
        waiting.gain.share,
        waiting.gain.high,
    )
    loader = (op(traces.LOADER, i * 100 * MS + 10 * US, i * 100 * MS + 50 * MS) for i in range(5))
    busy = products(5, 100 * MS, 99 * MS, start=10 * US)
    assert "input" not in told(run(*busy, ranges=ranges(*traces.steps(), *loader)))


def test_synchronisation_names_who_waits() -> None:
    """Kernels end 55 us after each start of 100 us, waits of 48 us at 58; the GPU is idle for 50: 9 * 48 of 950 us.

    Without a wait all that follows it comes as much earlier as it lasted. The last wait has no operation after it and
    costs nothing that is known.
    """
    line = python_calls(op("train.py(33): log", 0, 1000 * US))
    waits = told(traces.reading_values(58, python_calls=line))["synchronisation"]
    assert ("high", pytest.approx(9 * 48_000 / 950_000)) == (waits.severity, waits.gain.share)
    expected = "The CPU waits 10 times. The most costly waits are 9 by cudaStreamSynchronize at train.py(33): log."
    assert expected == waits.explanation
    # Waits of 2 us after the kernel is done cannot make 45 us of idle time.
    calls = [
        {"start_ns": i * 100 * US + 60 * US, "dur_ns": 2 * US, "name": "cudaStreamSynchronize"}
        for i in range(10)
    ]
    short = run(*products(10, 100 * US, 50 * US), calls=calls)
    assert 9 * 2 / 950 == pytest.approx(traces.values(short)["sync_idle_frac"])
    assert "synchronisation" not in told(short)


def test_where_most_gaps_are_short_those_of_four_times_the_median_count_too() -> None:
    """A hundred kernels of 3 us, one every 600 us, the last 1,400 us later: under 4 x 597 us."""
    times = [600 * i + 1400 * (i == 99) for i in range(100)]
    operators = [work("aten::add", at * US + US, (at + 4) * US, 3 * US) for at in times]
    found = told(run(*operators))["small_operators"]
    assert found.gain.share == pytest.approx(1 - 300 / (99 * 600 + 1400 + 3))


def test_what_the_system_told_of_waits_is_not_told_again() -> None:
    """Where the waits last until the next launch, the gaps have them as their cause: one finding, the system's.

    Where they last for half of the 50 us to it, the 25 us after them are worth telling, and the rule about waits tells
    of both: 50 us of each gap, and nobody else the 25 us inside the waits.
    """
    rules = {"idle_sync", "synchronisation", "idle_host_code"}
    assert {"idle_sync"} == rules & set(told(traces.reading_values(99)))
    both = traces.reading_values(80)
    assert 9 * 25 / 950 == pytest.approx(traces.values(both)["idle_sync_frac"])
    assert {"synchronisation"} == rules & set(told(both))
    assert 9 * 50 / 950 == pytest.approx(share(both, "synchronisation"), rel=1e-3)


def test_small_operators_gain_their_pauses() -> None:
    """Kernels of 3 us every 20 us: 299 gaps of 17 us in a span of 5,983 us, of which each launch arrives for 3 us."""
    small = told(traces.micro_kernels())["small_operators"]
    assert 299 * 17_000 / 5_983_000 == pytest.approx(small.gain.share)
    assert "100 % of the launches" in small.explanation
    assert "aten::add, aten::mul, aten::native_layer_norm" in small.explanation
    assert "small_operators" in told(run(*adds()))
    assert {} == told(
        run(*adds(), calls=GRAPHS)
    )  # of which nothing was recorded: the GPU may have worked


@pytest.mark.parametrize(("first", "is_loop"), [(85, True), (95, False)])
def test_a_loop_over_parameters_asks_for_a_fused_optimizer(first: int, is_loop: bool) -> None:
    """The last 15 of 100 small kernels are the optimizer's, or the last 5: a tenth is the least that counts."""
    optimizer = ranges(op("Optimizer.step#Adam.step", first * 20 * US, 2000 * US))
    advice = told(run(*adds(), ranges=optimizer))["small_operators"].advice["immediate"]
    assert is_loop == any("Use a fused optimizer" in step for step in advice)


@pytest.mark.parametrize(
    ("dur", "steps", "chains"),
    [(40, 4, "chains: 4, each of 5.0"), (40, 1, "chains: 1, each of 20.0"), (9, 4, "")],
)
def test_elementwise_kernels_in_a_row_are_chains_of_a_step(
    dur: int, steps: int, chains: str
) -> None:
    """Twenty kernels back to back: one kernel a step saves 16, or 19; kernels of 9 us are a matter of launching."""
    adds = [
        work("aten::add", (1 + 2 * i) * US, MS + i * dur * US, dur * US, family="elementwise")
        for i in range(20)
    ]
    marked = [
        op(f"ProfilerStep#{i}", i * 40 // steps * US, (i + 1) * 40 // steps * US)
        for i in range(steps)
    ]
    found = told(run(*adds, ranges=ranges(*marked)))
    assert bool(chains) == ("fusion" in found)
    if chains:
        assert chains in found["fusion"].explanation
        assert pytest.approx((20 - steps) / 20, abs=1e-3) == found["fusion"].gain.share
        assert picture.COMPUTATION == picture.own(found["fusion"])


def unnamed() -> list[dict[str, Any]]:
    return [
        each if i % 3 == 0 else {key: each[key] for key in ("call", "kernel")}
        for i, each in enumerate(adds())
    ]


LITTLE = ("aten::bmm", 1, GEMM), ("aten::_softmax", 1, {"dtypes": BF16}), ("aten::bmm", 1, GEMM)
ON_TWO_RANKS = [
    work("aten::bmm", US, 10 * US, 50 * US, **GEMM),
    work("aten::_softmax", US, 10 * US, 50 * US, rank=1, dtypes=BF16),
    work("aten::bmm", 5 * US, 60 * US, 50 * US, rank=1, **GEMM),
]
AHEAD = [work("aten::add", i * US + US, 100 * US + i * 4 * US, 3 * US) for i in range(100)]
EXPERTS = (
    ("aten::addmm", 2, GEMM),
    ("aten::_softmax", 3, {"dtypes": BF16}),
    *[("aten::bmm", 3, GEMM)] * 2,
)
PRODUCT, SOFTMAX = ("aten::bmm", 5, GEMM), ("aten::_softmax", 5, {"dtypes": BF16})
FUSED = ("aten::_flash_attention_forward", 1, {"family": "attention", "dtypes": BF16})
LOG_SOFTMAX = ("aten::_log_softmax", 5, {"dtypes": BF16})


@pytest.mark.parametrize(
    ("rule", "made"),
    [
        pytest.param(
            "small_operators", lambda: run(*adds(dur=12)), id="kernels of 12 us are not small"
        ),
        pytest.param(
            "small_operators", lambda: run(*adds(every=2000)), id="gaps of 2 ms are no pauses"
        ),
        pytest.param("small_operators", lambda: run(*AHEAD), id="the GPU never waits for a launch"),
        pytest.param(
            "small_operators", lambda: run(*unnamed()), id="two in three have no operator"
        ),
        pytest.param("small_operators", lambda: run(*adds(in_graph=True)), id="nodes of graphs"),
        pytest.param(
            "precision",
            lambda: in_turn(("aten::mm", 8, {"family": "gemm", "dtypes": BF16})),
            id="bf16",
        ),
        pytest.param(
            "precision", lambda: in_turn(("aten::mm", 8, {"family": "gemm"})), id="format unknown"
        ),
        pytest.param(
            "precision",
            lambda: in_turn(("aten::mm", 1, FP32), ("aten::add", 20, {})),
            id="1 of 21 ms",
        ),
        pytest.param("ranks", lambda: uneven(78, 80), id="1.3 % above the mean"),
        pytest.param(
            "attention",
            lambda: in_turn(("aten::addmm", 5, GEMM), SOFTMAX),
            id="a classifier's softmax",
        ),
        pytest.param(
            "attention",
            lambda: in_turn(PRODUCT, LOG_SOFTMAX, PRODUCT),
            id="products without softmax",
        ),
        pytest.param(
            "attention", lambda: in_turn(*EXPERTS, *EXPERTS), id="softmax that chooses experts"
        ),
        pytest.param(
            "attention", lambda: run(*ON_TWO_RANKS), id="product and softmax on two ranks"
        ),
        pytest.param("attention", lambda: in_turn(PRODUCT, SOFTMAX, PRODUCT, FUSED), id="fused"),
        pytest.param(
            "attention", lambda: in_turn(*LITTLE, ("aten::addmm", 40, GEMM)), id="3 of 43 ms"
        ),
    ],
)
@pytest.mark.sampled(2)
def test_what_is_no_cause_is_not_told(rule: str, made: Callable[[], Run]) -> None:
    assert rule not in told(made())


def test_precision_gains_the_matrix_work() -> None:
    """8 of 10 ms of products, 7 in float32 and 1 in nobody knows what: no mixed precision; at most 5x."""
    parts = (
        ("aten::mm", 7, FP32),
        ("aten::mm", 1, {"family": "gemm"}),
        ("aten::add", 2, {"family": "elementwise"}),
    )
    mixed = told(in_turn(*parts))["precision"]
    assert "0 % of the matrix work uses 16 or 8 bits" in mixed.title
    assert "80.0 % of the kernel time, most of it in fp32." in mixed.explanation
    assert ("high", pytest.approx(0.8)) == (mixed.severity, mixed.gain.share)
    idle = [
        work("aten::mm", i * 100 * MS + US, i * 100 * MS + 5 * US, MS, **FP32) for i in range(6)
    ]
    mixed = told(run(*idle))["precision"]
    assert ("low", pytest.approx(6 / 501)) == (mixed.severity, mixed.gain.share)
    both = [
        work("aten::mm", (1 + 3 * i) * US, MS, 10 * MS, **FP32) for i in (0, 1)
    ]  # at once: 10 of 20 ms
    assert 0.5 == pytest.approx(
        share(run(*both, work("aten::add", 9 * US, 11 * MS, 10 * MS)), "precision")
    )


def test_preparation_gains_the_idle_time_beside_it() -> None:
    """The first kernel starts at 60 ms; then four times 60 ms in the tokenizer of 440 ms.

    Marked steps say that the first of five requests begins 60 ms before its kernel: five times 60 of 500 ms.
    """
    assert 4 * 60 / 440 == pytest.approx(share(traces.tokenising(), "preparation"), rel=1e-3)
    marked = traces.tokenising(ranges=ranges(*traces.steps()))
    assert 0.6 == pytest.approx(share(marked, "preparation"), rel=1e-3)
    assert told(marked)["preparation"].title.endswith("idle 60.0 % of the time")
    late = perfkit.select(
        marked, window=(61 * MS, 500 * MS)
    )  # a window begins where its reader wants it to
    assert 4 * 60 / 439 == pytest.approx(share(late, "preparation"), rel=1e-3)


INSIDE = {"ranges": ranges(op(traces.LOADER, 10 * MS, 60 * MS))}


@pytest.mark.parametrize(
    ("name", "first", "last", "more", "part"),
    [
        pytest.param("tokenize", 0, 15, {}, 0, id="5 of 100 ms lie in the gap"),
        pytest.param("tokenize", 30, 80, {}, 0.5, id="50 of 100 ms lie in the gap"),
        pytest.param(
            "train_tokenizer.py(1): main", 0, 100, {}, 0, id="the program, named after a tokenizer"
        ),
        pytest.param("tokenize", 30, 80, {"calls": GRAPHS}, 0, id="the GPU may have run graphs"),
        pytest.param("collate", 10, 60, INSIDE, 0, id="inside the loader's range it is input"),
        pytest.param("collate", 10, 80, INSIDE, 0.2, id="what lies outside of it still counts"),
    ],
)
def test_what_counts_as_preparation(
    name: str, first: int, last: int, more: dict[str, Any], part: float
) -> None:
    """Two products of 10 ms at 0 and 90 ms, and a Python function from `first` to `last` ms."""
    calls = python_calls(op(name, first * MS, last * MS))
    one = run(*products(2, 90 * MS, 10 * MS), python_calls=calls, **more)
    found = told(one).get("preparation")
    assert (pytest.approx(part, rel=1e-3) if part else None) == (
        found.gain.share if found else None
    )


def uneven(*computing: int) -> Run:
    """Ranks that compute for so many of 100 ms, then meet in a collective that ends at 100 ms for all."""
    works = []
    for rank, length in enumerate(computing):
        for at in range(length):  # so many kernels of 1 ms: more work, not a slower GPU
            works.append(work("aten::mm", at * MS + US, at * MS + 2 * US, MS, rank=rank, **GEMM))
        meeting = {"family": "communication", "kernel": "ncclDevKernel_AllReduce"}
        works.append(
            work(
                "c10d::allreduce_",
                9 * US,
                length * MS + 2 * US,
                (100 - length) * MS,
                rank=rank,
                **meeting,
            )
        )
    return run(*works)


def test_ranks_gain_what_the_slowest_is_above_the_mean() -> None:
    """50, 50 and 80 ms of 100: 80 over 60, less 1, is a third; with even ranks 20 of 100 ms disappear."""
    ranks = told(uneven(50, 50, 80))["ranks"]
    assert "33.3 % longer than the average" in ranks.title
    assert ("medium", pytest.approx(0.2)) == (ranks.severity, ranks.gain.share)
    found = told(traces.replays(6))
    assert {"precision"} == set(found)
    assert ("low", None) == (found["precision"].severity, found["precision"].gain.share)


def test_attention_gains_its_kernels() -> None:
    """6 of 10 ms of each layer are softmax and its products, back to back: 0.6 of the time, at most 2.5x.

    Gradients of softmax and of its four products are steps too, the linear layer after them is not: 8 of 10 ms.
    """
    layers = told(traces.unfused_attention())["attention"]
    assert "takes 60.0 % of the kernel time" in layers.title
    assert (pytest.approx(0.6), pytest.approx(2.5)) == (layers.gain.share, layers.gain.high)
    product, softmax = ("aten::bmm", 1, GEMM), ("aten::_softmax_backward_data", 4, {"dtypes": BF16})
    backward = in_turn(product, product, softmax, product, product, ("aten::mm", 2, GEMM))
    assert 0.8 == pytest.approx(share(backward, "attention"))
    assert "attention" in told(in_turn(PRODUCT, SOFTMAX, ("aten::baddbmm", 5, GEMM)))


CASES: dict[str, Callable[[], Run]] = {
    "idle_data_loading": traces.waiting_for_input,
    "small_operators": traces.micro_kernels,
    "attention": traces.unfused_attention,
    "preparation": traces.tokenising,
}
RULES = {*CASES, "input", "synchronisation", "precision", "ranks"}


@pytest.mark.parametrize("rule", CASES)
def test_each_case_study_is_found_in_its_own_trace_alone(rule: str) -> None:
    causes = told(CASES[rule]())
    assert {rule} == RULES & set(causes)
    assert "high" == causes[rule].severity


def test_where_nothing_is_wrong_nothing_severe_is_told() -> None:
    assert [("computation", "low")] == [
        (f.rule, f.severity) for f in diagnosis.findings(traces.healthy())
    ]
    assert {"computation"} == set(
        told(perfkit.select(traces.waiting_for_input(), window=(141 * MS, 199 * MS)))
    )
    assert {} == told(traces.of_tables(OPS=traces.micro_kernels().ops))


@pytest.mark.parametrize(
    "name", ["aten::<script>alert(1)</script>", "a\x00\x1b[31m\u202e\nb", "tokenize" * 1250]
)
def test_names_from_outside_stay_names(name: str) -> None:
    micro = [
        work(name, i * 20 * US + US, i * 20 * US + 4 * US, 3 * US, kernel=name) for i in range(100)
    ]
    tokens = op(f"{name} tokenize"[-9000:], 3 * MS, 9 * MS)
    late = work(name, 10 * MS, 10 * MS + 5 * US, 3 * US, kernel=name)
    calls = [
        {"start_ns": i * 20 * US + 8 * US, "dur_ns": 12 * US, "name": "cudaDeviceSynchronize"}
        for i in range(99)
    ]
    one = run(
        *micro,
        late,
        calls=calls,
        ranges=ranges(tokens),
        python_calls=python_calls(op(name, 0, 2 * MS)),
    )
    found = diagnosis.findings(one)
    assert found
    for finding in found:
        figures = [
            text for figure in finding.evidence for text in (figure.label, figure.definition)
        ]
        texts = [finding.title, finding.explanation, finding.gain.why, *figures]
        assert all(text.isprintable() and len(text) <= 400 for text in texts)
    assert "<script>" not in report.key_findings(found, diagnosis.figures(one)).html


@pytest.mark.parametrize(
    "made", [*CASES.values(), traces.healthy, lambda: traces.reading_values(58)]
)
def test_gains_never_exceed_the_part_they_name(made: Callable[[], Run]) -> None:
    planted = perfkit.select(made())
    figures = traces.values(planted)
    for finding in told(planted).values():
        if finding.rule in RULES and finding.gain.share is not None:
            part = (
                "kernel_busy_frac"
                if finding.rule in ("attention", "precision", "ranks")
                else "idle_frac"
            )
            assert finding.gain.share <= figures[part]
            # The host that is not held up gets ahead, so that other idle time may go as well, but never computation.
            assert 1.0 <= finding.gain.high <= 1.03 / max(1 - figures[part], 1e-9)


def test_the_parts_of_pauses_between_launches_add_up_to_the_title() -> None:
    finding = told(traces.micro_kernels())["small_operators"]
    parts = re.findall(
        r"([\d.]+) % (?:while|between)", finding.explanation.partition("In these gaps")[2]
    )
    assert parts
    assert sum(map(float, parts)) == pytest.approx(
        100 * finding.evidence[0].value, abs=0.05 * len(parts)
    )
