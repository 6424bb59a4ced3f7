"""Where does a sequence repeat itself?

A sequence is an array of codes (kernel names in the order of their starts), a repetition a stretch
[first, stop) of places in it. Elements that occur once per repetition are its *anchors*: their
distance is the length. Of several lengths that explain the sequence (layers in a step, steps in an
epoch) the longest is taken, unless a shorter one has five times as many anchors: a step is made of
many kernels that run once in it, an epoch of few.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import members
from perfkit.analysis.grouping import grouped
from perfkit.analysis.intervals import Bool, Float, Int

FEWEST = 3
# A distance within a quarter of the usual one is even; it lets optional elements come and go.
EVEN = 0.25
# Share of the sequence that must lie in even distances. Short periods fit by chance more easily.
EXPLAINED, EXPLAINED_SHORT, SHORT = 0.5, 0.75, 4
# Share of a typical repetition's elements that a repetition has.
ALIKE = 0.9
SHORTER_ANCHORS = 5
# Share of the repetitions that have a pause of more than twice any other at about the same place.
REGULAR = 0.75
BUCKETS = 1024


class _Anchors(NamedTuple):
    """Elements that recur at about one distance: where the earliest of them occurs, the distance, how many they are."""

    places: Int
    length: int
    number: int


def repeats(code: Int, pause: Int | None = None) -> tuple[Int, Int]:
    """Return the first place of each repetition and the place after its last: at least three, or none. O(n log n).

    Repetitions do not overlap. Elements before, after and between them (a prologue, a validation
    run) belong to none; a repetition cut short at the end is none. A repetition starts where the
    `pause`, how long nothing happened before each element, is regularly longest; without pauses, at
    the anchor that occurs first.

    >>> first, stop = repeats(np.array([9, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 7]))
    >>> first.tolist(), stop.tolist()
    ([2, 5, 8, 11], [5, 8, 11, 14])
    """
    code = pd.factorize(code)[0].astype(np.int64)
    # The anchors whose distance is the length of a repetition.
    anchors: _Anchors | None = None
    for candidate in _candidates(code):
        enough = anchors is None or candidate.number >= SHORTER_ANCHORS * anchors.number
        if enough and _explained(code, candidate) >= _least(candidate.length) * len(code):
            anchors = candidate
    if anchors is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = None if pause is None else _after_pause(code, anchors, pause)
    if first is not None:
        return _stretches(code, first, anchors.length)
    # The stretches from anchor to anchor, or from an earlier place if that makes one more whole.
    stretches = _stretches(code, anchors.places, anchors.length)
    earlier = anchors.length - (len(code) - int(anchors.places[-1]))
    if not 0 < earlier <= anchors.places[0]:
        return stretches
    other = _stretches(code, anchors.places - earlier, anchors.length)
    return other if len(other[0]) > len(stretches[0]) else stretches


def _least(length: float | Float) -> Float:
    return np.where(np.asarray(length) < SHORT, EXPLAINED_SHORT, EXPLAINED)


def _candidates(code: Int) -> list[_Anchors]:
    """Return the elements that recur evenly, those of about one distance together, by falling distance."""
    symbols = int(code.max(initial=-1)) + 1
    place = np.argsort(code.astype(np.uint16) if symbols <= 1 << 16 else code, kind="stable")
    bound = np.r_[0, np.cumsum(np.bincount(code, minlength=symbols))]
    recurs = np.diff(code[place]) == 0
    distance, of = np.diff(place)[recurs], code[place[1:]][recurs]
    usual = grouped(distance, of, symbols)["median"].to_numpy(np.float64)
    even = np.abs(distance - usual[of]) <= EVEN * usual[of]
    # The last occurrence has no distance after it, but as long a stretch.
    explained = np.bincount(of, distance * even, symbols) + usual
    often = np.bincount(of, even, symbols) >= FEWEST - 1
    fit = np.flatnonzero(often & (explained >= _least(usual) * len(code)))
    found = []
    for group in _similar(fit[np.argsort(-usual[fit], kind="stable")], usual):
        # The first of the anchors that explain most of the sequence, within one repetition.
        most = group[explained[group] >= explained[group].max() - 1.5 * usual[group]]
        anchor = most[np.argmin(place[bound[most]])]
        found.append(
            _Anchors(place[bound[anchor] : bound[anchor + 1]], round(usual[anchor]), len(group))
        )
    return found


def _similar(fit: Int, usual: Float) -> list[Int]:
    """Split elements by falling distance where the distance drops by a tenth below the group's first."""
    groups: list[list[int]] = []
    for symbol in fit.tolist():
        if groups and usual[symbol] > 0.9 * usual[groups[-1][0]]:
            groups[-1].append(symbol)
        else:
            groups.append([symbol])
    return [np.array(group) for group in groups]


def _explained(code: Int, anchors: _Anchors) -> int:
    """Return how many elements lie in stretches from anchor to anchor that have the typical content."""
    first, stop = anchors.places[:-1], anchors.places[1:]
    even = np.abs(stop - first - anchors.length) <= EVEN * anchors.length
    first, stop = first[even], stop[even]
    held = _held(_content(code, first, stop, anchors.length), slice(None), anchors.length)
    return int((stop - first)[held].sum()) + anchors.length * bool(held.any())


def _content(code: Int, first: Int, stop: Int, length: int) -> Int:
    """Count the elements of each stretch in buckets, no more than it has elements: similar counts, similar content."""
    buckets = min(max(length, 1), BUCKETS)
    run, place = members(first, stop - first)
    counts = np.bincount(run * buckets + code[place] % buckets, minlength=len(first) * buckets)
    return counts.reshape(len(first), buckets)


def _held(content: Int, even: Bool | slice, length: int) -> Bool:
    """Tell which stretches contain the typical content, that of the median of the even ones."""
    sample = content[even]
    typical = (
        np.median(sample[:: max(1, len(sample) // 1000)], axis=0) if len(sample) else np.zeros(1)
    )
    if typical.sum() < ALIKE * length:
        return np.zeros(len(content), bool)
    return np.asarray(np.minimum(content, typical).sum(axis=1) >= ALIKE * typical.sum())


def _after_pause(code: Int, anchors: _Anchors, pause: Int) -> Int | None:
    """Move each anchor back to the place before which the sequence regularly pauses longest, if one stands out."""
    places, length = anchors.places, anchors.length
    whole = places[places >= length]
    before = pause[whole[:: max(1, len(whole) // 100), None] - np.arange(length)]
    lead, slack = int(np.median(before.argmax(axis=1))), length // 20
    near = np.abs(np.arange(length) - lead) <= slack
    stands_out = before[:, near].max(axis=1) > 2 * before[:, ~near].max(axis=1, initial=0)
    if stands_out.mean() < REGULAR:
        return None
    # Where repetitions differ by a few elements, the pause and the element they start with tell the
    # place.
    around = np.maximum(places[:, None] - np.arange(max(lead - slack, 0), lead + slack + 1), 0)
    each = np.arange(len(places))
    start = np.bincount(code[around[each, pause[around].argmax(axis=1)]]).argmax()
    likely = pause[around] + (code[around] == start) * (pause.max() + 1)
    return np.unique(around[each, likely.argmax(axis=1)])


def _stretches(code: Int, first: Int, length: int) -> tuple[Int, Int]:
    """Return the stretches from each `first` that hold a typical repetition, without what follows it."""
    stop = np.append(first[1:], len(code))
    even = np.abs(stop - first - length) <= EVEN * length
    first = first[_held(_content(code, first, stop, length), even, length)]
    stop = np.append(first[1:], len(code))
    usual_stop = np.minimum(first + length, stop)
    typical = _held(_content(code, first, usual_stop, length), slice(None), length)
    # Beyond the usual length other work begins, unless the repetition itself is another (a
    # warm-up).
    beyond = typical & ((stop - first > 1.5 * length) | (stop == len(code)))
    stop = np.where(beyond, usual_stop, stop)
    enough = len(first) >= FEWEST
    return (first, stop) if enough else (first[:0], stop[:0])
