"""What a view puts on the page: still, live, and after a wait for what is made beside all else."""

import asyncio
from collections.abc import Iterator, Sequence
from threading import Event
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from diagnosis.traces import MS, of_tables
from frames import api_calls, kernels, ranges
from widgets.viewed import Chooser

import perfkit
from perfkit import charts
from perfkit.analysis.causes import PARTS
from perfkit.charts.tables import again, loader
from perfkit.charts.vega import MIME
from perfkit.diagnosis.timeline import every_gap
from perfkit.errors import PerfkitError
from perfkit.format import verbatim
from perfkit.run import Run
from perfkit.widgets import after
from perfkit.widgets import live as widgets_live
from perfkit.widgets.choice import Explorer
from perfkit.widgets.live import (
    Later,
    Live,
    Part,
    Pending,
    Shown,
    bundle,
    follow,
    is_watched,
    shown,
)

KERNELS = pd.DataFrame(
    {"name": ["gemm"], "family": "gemm", "count": 1, "total_ns": [3], "share_frac": [1.0]}
)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    widgets_live._MADE.clear()
    yield
    widgets_live._MADE.clear()


def asked(
    monkeypatch: pytest.MonkeyPatch, *, cell: str = "", run: str = "", person: bool = True
) -> None:
    request = {
        "content": {"allow_stdin": person},
        "metadata": {"cellId": cell},
        "header": {"msg_id": run},
    }
    monkeypatch.setattr(
        widgets_live, "get_ipython", lambda: SimpleNamespace(get_parent=lambda: request)
    )


def choice(kernels: str = "") -> perfkit.Selection:
    chosen = perfkit.select(Run([]))
    chosen.pattern = kernels
    return chosen


def named(view: perfkit.Selection) -> list[Part]:
    return [view.pattern]


def html(live: Live) -> list[str]:
    return [output.outputs[0]["data"]["text/html"] for output in live.view.children[2:]]


def displayed(monkeypatch: pytest.MonkeyPatch, view: Shown) -> list[dict[str, Any]]:
    stored: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw, **_: stored.append(data) if raw else None
    )
    view._ipython_display_()
    return stored


def test_parts_are_stored_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    view = shown(
        choice(), lambda _: [charts.kernels.bars(KERNELS), charts.tables.show(KERNELS), "Well."]
    )
    assert isinstance(view, Shown)
    chart, table, sentence = displayed(monkeypatch, view)
    assert chart[MIME]["title"]["text"] == "gemm takes 100 % of GPU kernel time"
    assert chart["text/plain"].startswith("gemm takes 100 %")
    assert "<table>" in table["text/html"]
    assert {
        "text/html": verbatim('<p class="perfkit-sentence">Well.</p>'),
        "text/plain": "Well.",
    } == sentence


def test_sentences_are_escaped() -> None:
    assert "<img" not in bundle(HOSTILE)["text/html"]
    assert "&lt;img" in bundle(HOSTILE)["text/html"]
    assert len(bundle("x" * 10_000)["text/plain"]) == widgets_live.LONGEST


def test_scripts_are_stored_only_where_a_person_is(monkeypatch: pytest.MonkeyPatch) -> None:
    view = Shown(
        [
            charts.tables.show(KERNELS),
            charts.tables.searchable(KERNELS),
            charts.tables.searchable(KERNELS),
        ]
    )
    asked(monkeypatch)
    assert is_watched()
    still, first, second = (data["text/html"] for data in displayed(monkeypatch, view))
    assert "<script" not in still
    assert first.endswith(loader())
    assert second.endswith(again())
    asked(monkeypatch, person=False)
    assert not is_watched()
    assert "<script" not in "".join(data["text/html"] for data in displayed(monkeypatch, view))


def test_still_refusal_is_a_sentence_and_a_mistake_is_not() -> None:
    def refused(_: perfkit.Selection) -> Sequence[Part]:
        raise PerfkitError(f"{HOSTILE}: not recorded.")

    def mistaken(_: perfkit.Selection) -> Sequence[Part]:
        raise ValueError("top: 0 is not at least 1")

    view = shown(choice(), refused)
    assert isinstance(view, Shown)
    assert (f"{HOSTILE}: not recorded.",) == view.parts
    with pytest.raises(ValueError, match="top: 0"):
        shown(choice(), mistaken)


def test_what_a_function_makes_follows_the_choice() -> None:
    still = follow(choice("gemm"), lambda view: view.pattern)
    assert isinstance(still, Shown)
    assert ("gemm",) == still.parts
    explorer = Chooser(selection=choice("gemm"))
    live = follow(explorer, lambda view: view.pattern)  # type: ignore[arg-type]
    assert isinstance(live, Live)
    explorer.selection = choice("softmax")
    assert ("softmax",) == live.parts


def test_live_follows_the_choice() -> None:
    explorer = Chooser(selection=choice("first"))
    live = Live(explorer, named)
    assert [verbatim('<p class="perfkit-sentence">first</p>')] == html(live)
    explorer.selection = choice("second")
    assert ("second",) == live.parts
    explorer.problem, explorer.selection = f"{HOSTILE} ran nowhere.", None
    assert (f"{HOSTILE} ran nowhere.",) == live.parts
    assert "<img" not in html(live)[0]
    explorer.problem = ""
    assert ("Nothing is chosen.",) == live.parts

    def mistaken(view: perfkit.Selection) -> Sequence[Part]:
        if view.pattern == "bad":
            raise ValueError(f"kernels: {HOSTILE}")
        return ["good"]

    explorer.selection = choice("bad")
    live = Live(explorer, mistaken)
    assert "&lt;img src=x onerror=alert(1)&gt;" in html(live)[0]
    explorer.selection = choice("fine")
    assert ("good",) == live.parts


def test_live_draws_once_per_change() -> None:
    made = []
    explorer = Chooser(selection=choice("0"))
    live = Live(explorer, lambda view: made.append(view.pattern) or [view.pattern])
    explorer.selection = explorer.selection
    with explorer.hold_trait_notifications():
        explorer.problem, explorer.selection = "none", None
    with explorer.hold_trait_notifications():
        explorer.problem, explorer.selection = "", choice("1")
    assert ["0", "1"] == made
    live.close()
    explorer.selection = choice("2")
    assert ["0", "1"] == made


def test_live_waits_until_the_choice_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets_live, "PAUSE", 0.01)
    made: list[str] = []
    explorer = Chooser(selection=choice("0"))

    async def brushed() -> Live:
        live = Live(explorer, lambda view: made.append(view.pattern) or [view.pattern])
        for step in range(1, 6):
            explorer.selection = choice(str(step))
        await asyncio.sleep(0.05)
        explorer.selection = choice("6")
        live.close()
        await asyncio.sleep(0.05)
        return live

    live = asyncio.run(brushed())
    assert ["0", "5"] == made
    assert ("5",) == live.parts


def test_live_sends_what_changed() -> None:
    explorer = Chooser(selection=choice("1"))
    live = Live(explorer, lambda view: ["same", *view.pattern])
    scripts, said, first, second = live.view.children
    sent: list[Any] = []
    first.observe(sent.append, "outputs")
    explorer.selection = choice("23")
    assert (scripts, said, first, second) == live.view.children[:4]
    assert [] == sent
    assert [
        verbatim(f'<p class="perfkit-sentence">{text}</p>') for text in ("same", "2", "3")
    ] == html(live)
    explorer.selection = choice("")
    assert ("same",) == live.parts
    assert 3 == len(live.view.children)


def test_live_tables_have_their_library_once() -> None:
    explorer = Chooser(selection=choice("1"))
    live = Live(explorer, lambda view: [charts.tables.searchable(KERNELS, caption=view.pattern)])
    (library,) = live.view.children[0].outputs
    sent: list[Any] = []
    live.view.children[0].observe(sent.append, "outputs")
    assert loader() == library["data"]["text/html"]
    assert html(live)[0].endswith(again())
    explorer.selection = choice("2")
    assert [] == sent
    assert () == Live(explorer, named).view.children[0].outputs


def test_a_cell_that_runs_again_replaces_its_views(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Chooser(selection=choice("0"))
    lives = []
    for cell, run in (("a", "1"), ("b", "2"), ("a", "3"), ("a", "3")):
        asked(monkeypatch, cell=cell, run=run)
        lives.append(Live(explorer, named))
    explorer.selection = choice("1")
    assert [("0",), ("1",), ("1",), ("1",)] == [live.parts for live in lives]
    monkeypatch.setattr(
        widgets_live, "get_ipython", lambda: None
    )  # where no cell is named, none replaces another
    lives = [Live(explorer, named) for _ in range(2)]
    explorer.selection = choice("2")
    assert [("2",), ("2",)] == [live.parts for live in lives]
    live = lives[0]
    assert (live.view, live.row) == live.box.children
    data = live._repr_mimebundle_()
    assert live.box.model_id == data["application/vnd.jupyter.widget-view+json"]["model_id"]


def test_what_was_shown_stays_until_the_answer_is_there() -> None:
    begin = Event()
    later = Later(lambda: begin.wait(60))

    def slow(view: perfkit.Selection) -> list[Part]:
        if view.pattern == "<b>" and not later.soon():
            raise Pending(later, f"{view.pattern} is being made.")
        return [view.pattern, "the same"]

    async def watched() -> None:
        chooser = Chooser(selection=choice("first"))
        live = shown(chooser, slow)
        assert isinstance(live, Live)
        _, said, *places = live.view.children
        sent: list[Any] = []
        places[1].observe(sent.append, "outputs")
        assert ("none", "") == (said.layout.display, said.value)
        chooser.selection = choice("left")  # before it was drawn: it is seen no more
        chooser.selection = choice("<b>")
        await asyncio.sleep(4 * widgets_live.PAUSE)
        assert (f"<b> is being made. {widgets_live.UNTIL}", "first", "the same") == live.parts
        assert said.layout.display is None
        assert "&lt;b&gt; is being made" in said.value
        assert [places[0], places[1]] == [*live.view.children[2:]]
        assert all(widgets_live.OLD in place._dom_classes for place in places)
        begin.set()
        for _ in range(600):
            if live.parts == ("<b>", "the same"):
                break
            await asyncio.sleep(0.1)
        assert ("<b>", "the same") == live.parts
        assert ("none", "", []) == (said.layout.display, said.value, sent)
        assert not any(widgets_live.OLD in place._dom_classes for place in places)

    asyncio.run(watched())


def test_a_view_that_nobody_can_call_waits() -> None:
    def needs(later: Later[int]) -> Any:
        def make(view: perfkit.Selection) -> list[Part]:
            if later.made is None:
                raise Pending(later, "soon")
            return [str(later.made)]

        return make

    assert ("7",) == shown(choice(), needs(Later(lambda: 7))).parts
    assert ("8",) == shown(Chooser(selection=choice()), needs(Later(lambda: 8))).parts


def test_a_choice_seen_before_is_not_made_again() -> None:
    asked_for: list[str] = []

    def make(view: perfkit.Selection) -> list[Part]:
        asked_for.append(view.pattern)
        return [view.pattern]

    chooser = Chooser(selection=choice("a"))
    live = shown(chooser, make)
    for name in ("b", "a"):
        chooser.selection = choice(name)
    assert (("a",), ["a", "b"]) == (live.parts, asked_for)
    for number in range(widgets_live.KEPT):
        chooser.selection = choice(str(number))
    chooser.selection = choice("a")
    assert ("a", 2) == (asked_for[-1], asked_for.count("a"))


def test_it_is_made_once_and_who_waits_is_called_once() -> None:
    begin, made, heard = Event(), [], []

    def make() -> int:
        begin.wait(60)
        made.append(1)
        return 7

    def first() -> None:
        heard.append("first")

    async def asked() -> None:
        later, done = Later(make), asyncio.Event()
        assert later.soon() is None
        for listener in (first, first, done.set):
            later.then(listener)
        begin.set()
        await asyncio.wait_for(done.wait(), 60)
        assert (7, 7, [1]) == (later.soon(), later.now(), made)

    asyncio.run(asked())
    assert ["first"] == heard
    alone = Later(lambda: 3)
    alone.then(first)  # a program without a loop asks again
    assert (3, ["first"]) == (alone.now(), heard)

    def refused() -> int:
        raise PerfkitError("calls: cut off. Record them again.")

    failed = Later(refused)
    assert (None, None) == (failed.now(), failed.soon())
    assert "calls: cut off. Record them again." == str(failed.failed)


def test_an_answer_of_nothing_is_an_answer() -> None:
    """A view whose `make` says nothing of a run is empty, and nobody waits for it for ever."""
    assert Later(lambda: None).answer("soon", at_once=True) is None
    nothing = after(Chooser(selection=choice()), lambda view: None)
    assert (widgets_live.NOTHING,) == nothing.parts


def test_an_error_of_what_is_made_later_reaches_who_asks() -> None:
    later: Later[int] = Later(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        later.answer("soon", at_once=True)


@pytest.mark.parametrize("choice", [{}, {"ranks": [0]}, {"window": [3_000_000, 15_000_000]}])
def test_the_explorer_shows_the_idle_time_of_marked_steps_as_the_page_does(
    choice: dict[str, list[int]],
) -> None:
    """Two ranks prepare each of two steps of 10 ms for 8 ms, then run a kernel of 1 ms and wait for it.

    The first kernel begins at 8 ms: without the time before it each GPU is idle 9 ms, with it 17 ms. The last event
    begins at 18.1 ms, so the time ends with the last kernel at 19 ms.
    """
    rows: dict[str, list[dict[str, Any]]] = {"work": [], "calls": [], "marks": []}
    for rank in (0, 1):
        for step in (0, 1):
            at, of = 10 * MS * step, {"rank": rank, "correlation": step}
            rows["work"].append({**of, "start_ns": at + 8 * MS, "dur_ns": MS})
            rows["calls"].append({**of, "start_ns": at + 7 * MS, "dur_ns": MS})
            wait = {"rank": rank, "start_ns": at + 8 * MS + MS // 10, "dur_ns": MS}
            rows["calls"].append({**wait, "name": "cudaDeviceSynchronize", "correlation": -1})
            mark = {"rank": rank, "start_ns": at, "dur_ns": 10 * MS, "kind": "step"}
            rows["marks"].append({**mark, "name": f"ProfilerStep#{step}"})
    run = of_tables(
        KERNELS=kernels(*rows["work"]),
        API_CALLS=api_calls(*rows["calls"]),
        RANGES=ranges(*rows["marks"]),
    )
    view = perfkit.select(run, **choice)
    found, _ = widgets_live.gaps(Chooser(), view)  # as an explorer asks
    expected = every_gap(view)
    columns = ["rank", "gpu", "start_ns", "dur_ns", *PARTS]
    pd.testing.assert_frame_equal(expected[columns], found[columns], check_dtype=False)
    assert expected["cause"].tolist() == found["cause"].tolist()
    idle = found.groupby("rank")["dur_ns"].sum().tolist()
    assert idle == {"window": [11 * MS] * 2, "ranks": [17 * MS]}.get("".join(choice), [17 * MS] * 2)
    assert Explorer(run).offer.span == (0, 19 * MS)
