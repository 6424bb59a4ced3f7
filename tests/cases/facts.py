"""Facts that are right of a recording: small predicates on what perfkit concludes.

Each function here returns a test of a `Judgement`, which returns what is wrong with it, "" if nothing is. Words are
compared in lower case, and several words are alternatives: a fact is no wording.
"""

import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from cases.judging import Judgement

from perfkit.diagnosis.finding import Finding

Test = Callable[[Judgement], str]
Value = float | Callable[[Path], float]
Words = str | Callable[[Path], str]

ROUNDING = 1e-3  # of a gain
RANDOMNESS = 0.03  # of a true gain: two runs of one program on the machine differ by it
HARDLY = 1.01  # a gain below is no gain
PERCENT = re.compile(r"(\d+(?:\.\d+)?) %")
FACTOR = re.compile(r"(\d+(?:\.\d+)?)(?:x| times)")


def named(text: str, words: Iterable[str]) -> list[str]:
    """Return which of these words a text holds; a word may go on, but it begins where it says.

    >>> named("nvkernel_F1L115: details of L1", ["l1", "tail", "detail"])
    ['l1', 'detail']
    """
    return [word for word in words if _begins(word).search(text.lower())]


@cache
def _begins(word: str) -> re.Pattern[str]:
    """A pattern of a word that is not the middle of another."""
    return re.compile(rf"(?<![a-z0-9_]){re.escape(word.lower())}")


def spoken(words: Iterable[str]) -> str:
    return " or ".join(repr(word) for word in words)


def _made(words: tuple[Words, ...], judgement: Judgement) -> list[str]:
    """Return words, of which some follow from the recording itself."""
    return [word(judgement.path) if callable(word) else word for word in words]


def _value(value: Value, judgement: Judgement) -> float:
    return value(judgement.path) if callable(value) else value


Texts = Callable[[Judgement], Iterable[str]]


def says(texts: Texts, place: str) -> Callable[..., Test]:
    """Return facts of one kind: some of these texts holds one of the words."""

    def fact(*words: Words) -> Test:
        def test(judgement: Judgement) -> str:
            sought = _made(words, judgement)
            seen = [*texts(judgement)]
            if any(named(text, sought) for text in seen):
                return ""
            return f"no {spoken(sought)} in {place}: {seen[:1] or judgement.error}"

        return test

    return fact


def omits(texts: Texts, place: str) -> Callable[..., Test]:
    """Return facts of the other kind: none of these texts holds one of the words."""

    def fact(*words: str) -> Test:
        def test(judgement: Judgement) -> str:
            if judgement.error:
                return judgement.error
            wrong = [text for text in texts(judgement) if named(text, words)]
            return f"{place}: {wrong[0]}" if wrong else ""

        return test

    return fact


def _verdict(judgement: Judgement) -> list[str]:
    return [judgement.verdict]


def _first(judgement: Judgement) -> list[str]:
    """Title, explanation and place of the first finding."""
    return [f"{one.title} {one.explanation} {one.place}" for one in judgement.findings[:1]]


def _texts(judgement: Judgement) -> list[str]:
    """Every sentence of the summary."""
    return judgement.texts


def _titles(judgement: Judgement) -> list[str]:
    return [finding.title for finding in judgement.findings]


def _advice(judgement: Judgement) -> list[str]:
    """What to do, and what to record next."""
    return judgement.steps_of_advice


def _first_advice(judgement: Judgement) -> list[str]:
    return judgement.steps_of_advice[:1]


verdict_says, verdict_omits = says(_verdict, "the verdict"), omits(_verdict, "the verdict")
told, not_told = says(_texts, "the summary"), omits(_texts, "the summary")
first_says = says(_first, "the first finding")
some_title_says, no_title_says = says(_titles, "the titles"), omits(_titles, "a title")
advised, not_advised = says(_advice, "the advice"), omits(_advice, "the advice")
advised_first = says(_first_advice, "the first advice")
not_advised_first = omits(_first_advice, "the first advice")


def places_follow_at() -> Test:
    """No place of a finding begins with "at": the page writes this word before it."""

    def test(judgement: Judgement) -> str:
        places = [finding.place for finding in judgement.findings]
        wrong = [place for place in places if place.startswith("at ")]
        return f"the page would say: at {wrong[0]}" if wrong else ""

    return test


def share_told(value: Value, tolerance: float = 0.01) -> Test:
    """The verdict, a tile or a title holds this share of something, to a point of a percent or so."""

    def test(judgement: Judgement) -> str:
        right = _value(value, judgement)
        shown = [judgement.verdict, *(tile.value for tile in judgement.tiles)]
        shown += [finding.title for finding in judgement.findings]
        shares = [float(share) / 100 for text in shown for share in PERCENT.findall(text)]
        if any(abs(share - right) <= tolerance for share in shares):
            return ""
        return f"{right:.1%} is not among {sorted(set(shares))}"

    return test


def figure_is(name: str, value: Value, tolerance: float = 0.01) -> Test:
    """A figure has this value, to a hundredth of it or so."""

    def test(judgement: Judgement) -> str:
        right = _value(value, judgement)
        if name not in judgement.figures:
            return f"no figure {name}: {judgement.error}"
        given = judgement.figures[name].value
        return (
            ""
            if math.isclose(given, right, rel_tol=tolerance)
            else f"{name} is {given}, not {right}"
        )

    return test


def figure_absent(name: str) -> Test:
    """A figure that would say nothing of this recording is not given."""

    def test(judgement: Judgement) -> str:
        if judgement.error:
            return judgement.error
        return f"{name} is {judgement.figures[name].text}" if name in judgement.figures else ""

    return test


def _of_run(judgement: Judgement) -> list[Finding]:
    return [finding for finding in judgement.findings if finding.gain.is_known]


def nothing_gained(*words: str) -> Test:
    """No finding claims a gain; with words, none whose title holds one of them."""

    def test(judgement: Judgement) -> str:
        if judgement.error:
            return judgement.error
        about = [
            finding for finding in _of_run(judgement) if not words or named(finding.title, words)
        ]
        wrong = [finding for finding in about if finding.gain.high > HARDLY]
        return f"{wrong[0].title}: {wrong[0].gain.text}" if wrong else ""

    return test


def gain_of(*words: str, most: Value, least: Value = 1.0) -> Test:
    """The best case of each finding with one of these words in its title lies between these factors."""

    def test(judgement: Judgement) -> str:
        about = [finding for finding in judgement.findings if named(finding.title, words)]
        if not about:
            return f"no finding of {spoken(words)}: {judgement.error}"
        low, high = _value(least, judgement), _value(most, judgement)
        wrong = [
            finding
            for finding in about
            if not low - ROUNDING <= finding.gain.high <= high + ROUNDING
        ]
        return f"{wrong[0].title}: up to {wrong[0].gain.high:.3f}x" if wrong else ""

    return test


def gain_within_share(*words: str) -> Test:
    """Each finding with one of these words in its title gains no more than 1 / (1 - share), whatever its reason."""

    def test(judgement: Judgement) -> str:
        about = [finding for finding in judgement.findings if named(finding.title, words)]
        if not about:
            return f"no finding of {spoken(words)}: {judgement.error}"
        wrong = [
            finding
            for finding in about
            if finding.gain.high * (1 - (finding.gain.share or 0)) > 1 + ROUNDING
        ]
        return f"{wrong[0].title}: up to {wrong[0].gain.high:.3f}x" if wrong else ""

    return test


def gain_beyond(word: str, line: str) -> Test:
    """The finding with this word in its title names a line of the ledger that gets shorter too."""

    def test(judgement: Judgement) -> str:
        about = [finding for finding in judgement.findings if named(finding.title, [word])]
        if not about:
            return f"no finding of {word!r}: {judgement.error}"
        return (
            ""
            if line in about[0].gain.beyond
            else f"{about[0].title}: beyond its share {about[0].gain.beyond}"
        )

    return test


def gains_at_most(most: float) -> Test:
    """No finding promises more than this factor."""

    def test(judgement: Judgement) -> str:
        if judgement.error:
            return judgement.error
        wrong = [finding for finding in _of_run(judgement) if finding.gain.high > most + ROUNDING]
        return f"{wrong[0].title}: {wrong[0].gain.text}" if wrong else ""

    return test


def bounds_follow_from_shares(judgement: Judgement) -> str:
    """No gain exceeds 1 / (1 - share), unless it names other lines of the ledger that get shorter, too."""
    if judgement.error:
        return judgement.error
    for finding in judgement.findings:
        gain = finding.gain
        if gain.share is None or not gain.is_known:
            continue
        bound = 1 / (1 - gain.share) if gain.share < 1 else math.inf
        if gain.high > bound + ROUNDING and not gain.beyond:
            return f"{finding.title}: up to {gain.high:.3f}x, by its share up to {bound:.3f}x"
    return ""


def _leading_gain(judgement: Judgement) -> str:
    """Say whether the first finding claims a gain at all; "" if it does."""
    if judgement.error or not judgement.findings:
        return judgement.error or "no finding"
    first = judgement.findings[0]
    return "" if first.gain.is_known else f"{first.title}: {first.gain.text}"


def gain_covers_truth(judgement: Judgement) -> str:
    """The range of the first finding holds what the program without the cause truly gains."""
    if unknown := _leading_gain(judgement):
        return unknown
    first = judgement.findings[0]
    low, high = first.gain.low * (1 - RANDOMNESS), first.gain.high * (1 + RANDOMNESS)
    if low <= judgement.truth <= high:
        return ""
    return f"{first.title}: {first.gain.text}, in truth {judgement.truth:.2f}x"


def bound_reaches_truth(judgement: Judgement) -> str:
    """The best case of the first finding is no less than what the program without the cause truly gains."""
    if unknown := _leading_gain(judgement):
        return unknown
    first = judgement.findings[0]
    if judgement.truth <= first.gain.high * (1 + RANDOMNESS):
        return ""
    return f"{first.title}: up to {first.gain.high:.2f}x, in truth {judgement.truth:.2f}x"


def likely_is_possible(judgement: Judgement) -> str:
    """What the first finding calls likely is no more than what the program without the cause truly gains."""
    if unknown := _leading_gain(judgement):
        return unknown
    first = judgement.findings[0]
    if first.gain.low <= judgement.truth * (1 + RANDOMNESS):
        return ""
    return f"{first.title}: {first.gain.low:.2f}x or more, in truth {judgement.truth:.2f}x"


def verdict_agrees_with_the_first_finding(judgement: Judgement) -> str:
    """The factor that the verdict names is that of the first finding."""
    if unknown := _leading_gain(judgement):
        return unknown
    first = judgement.findings[0]
    factors = [float(factor) for factor in FACTOR.findall(judgement.verdict)]
    lowest, highest = first.gain.low - 0.05, first.gain.high + 0.05
    if (
        factors
        and all(lowest <= factor <= highest for factor in factors)
        and max(factors) > 0.9 * first.gain.low
    ):
        return ""
    return f"{first.title}: {first.gain.text}, the verdict: {judgement.verdict}"


def no_range_wider_than(times: float) -> Test:
    """No tile gives a range of factors whose ends are this far apart."""

    def test(judgement: Judgement) -> str:
        if judgement.error:
            return judgement.error
        for tile in judgement.tiles:
            factors = [float(factor) for factor in FACTOR.findall(f"{tile.value} {tile.note}")]
            if factors and max(factors) > times * min(factors):
                return f"{tile.label}: {tile.value}, {tile.note}"
        return ""

    return test


def only_kernels_means_most_of_the_time(judgement: Judgement) -> str:
    """Where a verdict says that only kernels count, all else together gains less than a quarter."""
    if judgement.error:
        return judgement.error
    if not named(judgement.verdict, ["only faster or fewer kernels"]):
        return ""
    computing = judgement.figures["computation_frac"].value
    return (
        "" if 1 / computing < 1.25 else f"all else gains {1 / computing:.2f}x: {judgement.verdict}"
    )
