"""Live views of large runs: what takes long follows a sentence, and what was seen before is not made again."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import traitlets

import perfkit
from perfkit.run import Run
from perfkit.widgets import live as widgets_live
from perfkit.widgets.live import Later, Live, Part, Pending, shown


class Chooser(traitlets.HasTraits):
    """What an explorer shows of itself to a view."""

    selection = traitlets.Any()
    problem = traitlets.Unicode()


def choice(kernels: str = "") -> perfkit.Selection:
    """A choice of nothing, with a name."""
    chosen = perfkit.select(Run([]))
    chosen.pattern = kernels
    return chosen


def test_live_view_that_has_to_wait_says_so_and_follows() -> None:
    """What it needs takes long: a sentence first, then the answer; a choice that is seen no more is not drawn."""
    begin = Event()
    later = Later(lambda: begin.wait(60))

    def slow(view: perfkit.Selection) -> list[Part]:
        if not later.soon():
            raise Pending(later, f"{view.pattern} is being made")
        return [view.pattern]

    async def watched() -> list[tuple[Part, ...]]:
        chooser = Chooser(selection=choice("first"))
        live = shown(chooser, slow)
        seen = [live.parts]
        chooser.selection = choice("second")
        await asyncio.sleep(4 * widgets_live.PAUSE)
        seen.append(live.parts)
        begin.set()
        for _ in range(600):
            if live.parts == ("second",):
                break
            await asyncio.sleep(0.1)
        return [*seen, live.parts]

    assert [("first is being made",), ("second is being made",), ("second",)] == asyncio.run(watched())


def test_what_was_shown_stays_until_the_answer_is_there() -> None:
    """A second choice takes long: the parts of the first stay, pale and not sent again, below a sentence."""
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
    """A still view, and a live one where no loop runs, show the answer alone."""

    def needs(later: Later[int]) -> Any:
        def make(view: perfkit.Selection) -> list[Part]:
            if later.made is None:
                raise Pending(later, "soon")
            return [str(later.made)]

        return make

    assert ("7",) == shown(choice(), needs(Later(lambda: 7))).parts
    assert ("8",) == shown(Chooser(selection=choice()), needs(Later(lambda: 8))).parts


def test_a_choice_seen_before_is_not_made_again() -> None:
    """Back to the first choice: the same parts, without asking; one seen long ago is made anew."""
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
