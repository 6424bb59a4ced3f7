"""What must not change does not, on small captures; on all of them by `-m matrix`."""

from collections.abc import Iterator

import pytest
from relations.captures import every, prepared
from relations.judgements import Judgement, other_figures, other_rules, other_verdict
from relations.known import COUNT, FILE, mended, parameters, read, written
from relations.recordings import DoesNotApply
from relations.relations import BY_NAME, RELATIONS, broken, cut, more_idleness, more_work

from perfkit.errors import ReadError

COUNTED = [relation for relation, cases in read().items() if COUNT in cases]


def judgement(
    first: str = "idle",
    confidence: str = "high",
    shares: dict[str, float | None] | None = None,
    figures: dict[str, float] | None = None,
    doubts: tuple[str, ...] = (),
    rows: int = 1,
) -> Judgement:
    told = shares if shares is not None else {first: 0.5}
    return Judgement("", first, confidence, told, figures or {}, dict.fromkeys(doubts, rows))


@pytest.mark.usefixtures("profiles")
@pytest.mark.parametrize(("relation", "capture"), parameters(cuts=False))
def test_what_must_not_change_does_not(relation: str, capture: str) -> None:
    assert [] == broken(BY_NAME[relation], *prepared(capture))


@pytest.mark.matrix
@pytest.mark.usefixtures("profiles")
@pytest.mark.parametrize("relation", COUNTED)
def test_as_many_captures_break_a_relation_as_is_known(relation: str) -> None:
    names = list(_breaking(relation))
    assert read()[relation][COUNT] == len(names), "\n".join(names)


def _breaking(relation: str) -> Iterator[str]:
    for name in every():
        try:
            recording, before = prepared(name)
            if broken(BY_NAME[relation], recording, before):
                yield name
        except (DoesNotApply, ReadError):
            continue


def test_each_relation_has_cases() -> None:
    assert [relation.name for relation in RELATIONS] == list(read())
    assert all(cases["holds"] or cases["broken"] for cases in read().values())


def test_cuts_are_tried_on_ten_captures_of_three_kinds() -> None:
    cases = [of for name, of in read().items() if name.startswith("cut")]
    names = {name for of in cases for name in (*of["holds"], *of["broken"])}
    assert 10 <= len(names)
    assert {"nsys", "torch", "data"} == {name.partition("/")[0] for name in names}


def test_the_same_cause_after_a_cut_needs_no_doubt() -> None:
    assert [] == cut(judgement("idle", "high"), judgement("idle", "low"))


def test_another_cause_after_a_cut_needs_a_doubt() -> None:
    after = judgement("copies_bound", "medium")
    assert ["idle (high) becomes copies_bound (medium) without a new doubt"] == cut(
        judgement(), after
    )


def test_another_cause_after_a_cut_may_come_with_a_doubt() -> None:
    assert [] == cut(judgement(), judgement("copies_bound", "medium", doubts=("lost kernels",)))


def test_another_cause_after_a_cut_never_has_high_confidence() -> None:
    after = judgement("copies_bound", "high", doubts=("lost kernels",))
    assert ["idle (high) becomes copies_bound (high)"] == cut(judgement(), after)


def test_a_doubt_that_was_there_before_is_no_answer_to_a_cut() -> None:
    before, after = (judgement(first, "low", doubts=("old",)) for first in ("idle", "input"))
    assert ["idle (low) becomes input (low) without a new doubt"] == cut(before, after)


def test_a_doubt_about_more_rows_is_an_answer_to_a_cut() -> None:
    before, after = (judgement("idle" * n, "low", doubts=("old",), rows=n) for n in (1, 2))
    assert [] == cut(before, after)


def test_no_finding_after_a_cut_needs_a_doubt() -> None:
    assert ["idle (high) becomes nothing without a new doubt"] == cut(
        judgement(), judgement("", "", {})
    )


def test_another_confidence_is_told() -> None:
    after = judgement("idle", "low")
    assert ["the confidence in idle turns from high to low"] == other_verdict(judgement(), after)


def test_new_and_lost_doubts_are_told() -> None:
    before, after = judgement(doubts=("old",)), judgement(doubts=("new",))
    assert ["new doubt: new", "lost doubt: old"] == other_verdict(before, after)


def test_findings_that_may_appear_are_not_told() -> None:
    after = judgement(shares={"start_up": 0.1, "input": 0.2})
    assert ["input appears", "idle disappears"] == other_rules(judgement(), after, ("start_up",))


def test_figures_are_compared_within_a_share() -> None:
    before = judgement(figures={"idle_ns": 100.0, "span_ns": 200.0})
    after = judgement(figures={"idle_ns": 101.0, "span_ns": 210.0})
    assert ["span_ns is 210, was 200"] == other_figures(before, after, within=0.02)


def test_a_figure_that_is_gone_is_told() -> None:
    assert ["idle_ns is nan, was 100"] == other_figures(
        judgement(figures={"idle_ns": 100.0}), judgement()
    )


def test_more_time_in_kernels_must_not_make_idleness_grow() -> None:
    before = judgement(figures={"kernel_busy_frac": 0.5})
    after = judgement(shares={"idle": 0.6, "copies_bound": 0.1}, figures={"kernel_busy_frac": 0.4})
    assert [
        "copies_bound appears",
        "kernel_busy_frac falls from 0.5 to 0.4",
        "the share of idle grows",
    ] == more_work(before, after)


def test_more_idle_time_must_not_make_its_finding_shrink() -> None:
    after = judgement(shares={"idle": 0.4})
    assert ["the share of idle falls from 0.5 to 0.4"] == more_idleness(judgement(), after)


def test_mending_moves_what_holds_now_and_nothing_else() -> None:
    cases = {"cut_gpu": {"holds": ["c"], "broken": {"a": "why", "b": "why"}, "broken_of_all": 3}}
    outcomes = {("cut_gpu", "a"): [], ("cut_gpu", "b"): ["still"], ("cut_gpu", "c"): ["broken now"]}
    assert {"holds": ["a", "c"], "broken": {"b": "why"}, "broken_of_all": 3} == mended(
        cases, outcomes
    )["cut_gpu"]


def test_the_file_of_cases_is_written_as_it_is_read() -> None:
    assert written(read()) == FILE.read_text(encoding="utf-8")
