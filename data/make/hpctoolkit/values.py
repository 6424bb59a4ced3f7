"""How do `profile.db` and `cct.db` store values, by thread and by context?

Conventions
-----------
Only values other than zero are stored. By thread they are sorted by context and metric, by context by metric and
thread. Context 0 is the one around all entry points; it has the execution scope alone. Profile 0 is the summary: the
sum over all threads.

Classes and functions
---------------------
rows              the values of a thread that are stored
ProfileWriter     `profile.db`, thread by thread
write_contexts    `cct.db`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from make.hpctoolkit.layout import WORD, Form, Int, header, header_size, packed
from make.hpctoolkit.metrics import Metric
from make.hpctoolkit.tree import SCOPES, Tree

PROFILE_FOOTER, CONTEXT_FOOTER = b"_prof.db", b"__ctx.db"
SUMMARY = 1

_BY_PROFILE = (np.dtype([("metric", "<u2"), ("value", "<f8")]), np.dtype([("context", "<u4"), ("start", "<u8")]))
_BY_CONTEXT = (np.dtype([("profile", "<u4"), ("value", "<f8")]), np.dtype([("metric", "<u2"), ("start", "<u8")]))
_PROFILE_WORDS, _CONTEXT_WORDS = 6, 4
_HALF = 2  # both kinds of array are aligned to two bytes at least, so that they can be placed by half words


class Rows(NamedTuple):
    """Values with the id of their context and of their metric in its scope, sorted by both."""

    context: NDArray[np.uint32]
    metric: NDArray[np.uint16]
    value: NDArray[np.float64]


_NO_ROWS = Rows(np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0))


def rows(tree: Tree, metrics: Sequence[Metric], points: Int, unaccounted: Int) -> Rows:
    """Return what is stored of values measured at (context, metric).

    Parameters
    ----------
    tree, metrics
        What the positions in `points` mean.
    points
        Integers, in parts of the metrics' units.
    unaccounted
        What context 0 has beyond the sum of its entry points, per metric.

    Returns
    -------
    Rows
        The values of all scopes that are not zero.
    """
    scopes = np.stack((points, *tree.scopes(points)), axis=-1)
    whole = np.zeros((1, *scopes.shape[1:]), np.int64)
    whole[0, :, -1] = scopes[tree.parent < 0, :, -1].sum(axis=0) + unaccounted
    by_id = np.argsort(tree.ids)
    scopes = np.concatenate([whole, scopes[by_id]]).reshape(len(tree) + 1, -1)
    ids = np.concatenate([[0], tree.ids[by_id]])
    at, metric = np.nonzero(scopes)
    per_unit = np.repeat([m.per_unit for m in metrics], len(SCOPES))[metric]
    return Rows(ids[at].astype(np.uint32), metric.astype(np.uint16), scopes[at, metric] / per_unit)


class ProfileWriter:
    """`profile.db` while it is written; threads come in their order, the summary last.

    Parameters
    ----------
    file
        Open for writing, at its start.
    identities
        What `Thread.identity` says of each thread: (kind, whether it is physical, logical id, physical id) per level.
    form
        How to write it.
    """

    def __init__(self, file: BinaryIO, identities: Sequence[Sequence[tuple[int, int, int, int]]], form: Form) -> None:
        self._file, self._form = file, form
        self._infos = header_size(2)
        self._size = 2 * WORD + WORD * (_PROFILE_WORDS + form.spare_words) * (len(identities) + 1)
        self._words = np.zeros((len(identities) + 1, _PROFILE_WORDS + form.spare_words), "<u8")
        tuples = [_identity(identity) for identity in identities]
        starts = self._infos + self._size + np.cumsum([0, *map(len, tuples)])
        self._words[1:, 4] = starts[:-1]
        self._tuples = b"".join(tuples)
        self._at = int(starts[-1])
        file.write(bytes(self._infos + self._size) + self._tuples)

    def add(self, profile: int, rows: Rows) -> None:
        """Write the values of a profile; 0 is the summary, thread i is i + 1."""
        values, index = _BY_PROFILE
        shift = self._form.first_statistic if profile == 0 else 0
        contexts, starts = np.unique(rows.context, return_index=True)
        block = _structured(values, metric=rows.metric + shift, value=rows.value).tobytes()
        gap = -(self._at + len(block)) % 4
        index_at = self._at + len(block) + gap
        indices = _structured(index, context=contexts, start=starts).tobytes()
        self._words[profile, :4] = len(rows.value), self._at, len(contexts), index_at
        self._file.write(block + bytes(gap) + indices)
        self._at = index_at + len(indices)

    def finish(self) -> None:
        """Write the list of profiles, which stands before their values, and the end of the file."""
        self._words[0, 5] = SUMMARY
        self._file.write(bytes(-self._at % WORD) + PROFILE_FOOTER)
        spans = [(self._size, self._infos), (len(self._tuples), self._infos + self._size)]
        head = [self._infos + 2 * WORD, packed("<IB", len(self._words), self._words.itemsize * self._words.shape[1])]
        self._file.seek(0)
        self._file.write(header(b"prof", spans, self._form) + np.array(head, "<u8").tobytes() + self._words.tobytes())


def write_contexts(file: BinaryIO, contexts: int, threads: Sequence[Rows], form: Form) -> None:
    """Write `cct.db`.

    Parameters
    ----------
    file
        Open for writing, at its start.
    contexts
        One more than the largest id.
    threads
        Values of each thread; thread i is profile i + 1.
    form
        How to write it.
    """
    context, metric, profile, value = _joined(threads)
    new = np.flatnonzero(np.diff(context.astype(np.int64) << 16 | metric, prepend=-1))
    values, metrics = (np.bincount(of, minlength=contexts) for of in (context, context[new]))
    size_value, size_index = (dtype.itemsize for dtype in _BY_CONTEXT)
    infos = header_size(1)
    words = np.zeros((contexts, _CONTEXT_WORDS + form.spare_words), "<u8")
    first = infos + 2 * WORD + words.nbytes
    sizes = size_value * values + size_index * metrics
    sizes += -sizes % 4
    ends = first + np.cumsum(sizes)
    words[:, 0], words[:, 1], words[:, 2] = values, ends - sizes, metrics
    words[:, 3] = words[:, 1] + (size_value * values).astype(np.uint64)
    began, index_began = (np.cumsum(count) - count for count in (values, metrics))
    blocks = np.zeros((int(ends[-1]) - first) // _HALF, "<u2")
    at = (ends - sizes - first)[context] + size_value * (np.arange(len(value)) - began[context])
    _place(blocks, at, _structured(_BY_CONTEXT[0], profile=profile, value=value))
    owner = context[new]
    at = (ends - sizes - first + size_value * values)[owner] + size_index * (np.arange(len(new)) - index_began[owner])
    _place(blocks, at, _structured(_BY_CONTEXT[1], metric=metric[new], start=new - began[owner]))
    head = [infos + 2 * WORD, packed("<IB", contexts, words.itemsize * words.shape[1])]
    file.write(header(b"ctxt", [(2 * WORD + words.nbytes, infos)], form) + np.array(head, "<u8").tobytes())
    file.write(words.tobytes())
    file.write(blocks.tobytes())
    file.write(bytes(-int(ends[-1]) % WORD) + CONTEXT_FOOTER)


def _identity(identity: Sequence[tuple[int, int, int, int]]) -> bytes:
    ids = [[packed("<BxHI", kind, physical, logical), number] for kind, physical, logical, number in identity]
    return np.array([len(ids), *np.ravel(ids)], "<u8").tobytes()


def _joined(threads: Sequence[Rows]) -> tuple[NDArray[Any], ...]:
    """Values of all threads sorted by context, metric and thread; those of a thread already are."""
    context, metric, value = (np.concatenate([part[i] for part in (_NO_ROWS, *threads)]) for i in range(3))
    profile = np.repeat(np.arange(1, len(threads) + 1, dtype=np.uint32), [len(part.value) for part in threads])
    order = np.argsort(context.astype(np.int64) << 16 | metric, kind="stable")
    return context[order], metric[order], profile[order], value[order]


def _structured(dtype: np.dtype[Any], **columns: NDArray[Any]) -> NDArray[Any]:
    made = np.empty(len(next(iter(columns.values()))), dtype)
    for name, column in columns.items():
        made[name] = column
    return made


def _place(blocks: NDArray[np.uint16], at: Int, records: NDArray[Any]) -> None:
    """Put each record at its byte."""
    halves = records.view("<u2").reshape(len(records), records.itemsize // _HALF)
    for i in range(halves.shape[1]):
        blocks[at // _HALF + i] = halves[:, i]
