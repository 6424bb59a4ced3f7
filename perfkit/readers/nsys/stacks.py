"""Call stacks of CPU threads: of samples, and of long calls of the operating system and of CUDA."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.nsys import sources
from perfkit.readers.nsys.sources import column
from perfkit.readers.text import category
from perfkit.schema import order_of

SAMPLED = "COMPOSITE_EVENTS"
# Kind of stack: the table of its frames, and the table whose rows have such stacks.
KINDS = {
    "sample": ("SAMPLING_CALLCHAINS", SAMPLED),
    "os_call": ("OSRT_CALLCHAINS", "OSRT_API"),
    "cuda_call": ("CUDA_CALLCHAINS", "CUPTI_ACTIVITY_KIND_RUNTIME"),
}
ADDRESS = "0x"  # a symbol that begins so is no name
MARKER = "["  # [Broken backtraces] and [Max depth] stand where the rest of a stack is not known


@dataclass(frozen=True)
class Chains:
    """The call chains of one kind: their ids in the export, ascending, and the number of the stack of each."""

    ids: sources.Int
    stacks: sources.Int

    def stack_of(self, ids: sources.Int) -> sources.Int:
        """Return the number of the stack of each id, -1 where there is no such chain."""
        if not len(self.ids):
            return np.full(len(ids), -1, np.int64)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.stacks[places], np.int64(-1))


class Rows(NamedTuple):
    """The frames of one kind of chains, chain by chain, innermost first; and the ids and lengths of the chains."""

    symbols: sources.Int
    modules: sources.Int
    ids: sources.Int
    lengths: sources.Int


class Stacks:
    """STACKS and FRAMES of an export, which share the numbers of distinct stacks."""

    def __init__(self, source: sources.Source) -> None:
        self._source = source

    def has_frames(self) -> bool:
        """Tell whether there are frames."""
        return any(self._source.has_rows(frames) for frames, _ in KINDS.values())

    def has_stacks(self) -> bool:
        """Tell whether there are samples, or calls with a stack."""
        return self._source.has_rows(SAMPLED) or any(
            self._source.has_rows(frames) and self._source.has_rows(calls)
            for frames, calls in KINDS.values()
        )

    def stacks(self) -> pd.DataFrame:
        """Return STACKS: samples, also those without a stack, and calls that have one."""
        parts = [self._samples(), *self._calls()]
        parts = [part for part in parts if part and len(part["start_ns"])]
        if not parts:
            return tables.STACKS.empty()
        columns: dict[str, Any] = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
        columns["kind"] = category(columns["kind"], list(KINDS))
        return sources.framed(tables.STACKS, columns)

    def frames(self) -> pd.DataFrame:
        """Return FRAMES: the frames of each distinct stack, innermost first."""
        frames, _ = self._numbered
        return frames

    def _samples(self) -> sources.Columns:
        columns = sources.read(self._source, SAMPLED, SAMPLE_MAP, ("start", "globalTid"))
        columns["stack"] = self._chains("sample").stack_of(columns["stack"])
        columns["dur_ns"] = np.zeros(len(columns["stack"]), np.int64)
        columns["kind"] = np.zeros(len(columns["stack"]), np.int8)
        return columns

    def _calls(self) -> Iterator[sources.Columns]:
        """Yield the calls that have a stack, kind by kind."""
        for number, (kind, (_, called)) in enumerate(KINDS.items()):
            chains = self._chains(kind)
            if called == SAMPLED or not len(chains.ids):
                continue

            def with_stack(
                calls: sources.Columns, number: int = number, chains: Chains = chains
            ) -> sources.Columns:
                stack = chains.stack_of(calls["stack"])
                some = {name: values[stack >= 0] for name, values in calls.items()}
                count = len(some["stack"])
                return {
                    **some,
                    "stack": stack[stack >= 0],
                    "cpu": np.full(count, -1, np.int32),
                    "kind": np.full(count, number, np.int8),
                }

            sources.require(self._source, called, ("start", "end"))
            yield from sources.each_part(self._source, called, CALL_MAP, with_stack)

    def _chains(self, kind: str) -> Chains:
        _, chains = self._numbered
        nothing = np.zeros(0, np.int64)
        return chains.get(kind, Chains(nothing, nothing))

    @cached_property
    def _numbered(self) -> tuple[pd.DataFrame, dict[str, Chains]]:
        """FRAMES, and the chains of each kind with the numbers of their stacks."""
        recorded = {
            kind: self._rows(frames)
            for kind, (frames, _) in KINDS.items()
            if self._source.has_rows(frames)
        }
        if not recorded:
            return tables.FRAMES.empty(), {}
        function = self._named(np.concatenate([rows.symbols for rows in recorded.values()]))
        module = self._named(np.concatenate([rows.modules for rows in recorded.values()]))
        lengths = np.concatenate([rows.lengths for rows in recorded.values()])
        codes = (function.codes.astype(np.int64) + 1) * (len(module.categories) + 1) + module.codes
        stacks = distinct(pd.factorize(codes)[0], lengths)
        chains = {}
        begin = 0
        for kind, rows in recorded.items():
            end = begin + len(rows.ids)
            chains[kind] = Chains(rows.ids, stacks[begin:end])
            begin = end
        return _frames(function, module, stacks, lengths), chains

    def _rows(self, table: str) -> Rows:
        """Return the frames of one kind of chains."""

        columns = sources.read(self._source, table, FRAME_MAP, ("id", "stackDepth", "symbol"))
        order = order_of([columns["id"], columns["depth"]])
        ids = columns["id"][order]
        starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
        lengths = np.diff(np.append(starts, len(ids)))
        return Rows(columns["symbol"][order], columns["module"][order], ids[starts], lengths)

    def _named(self, ids: sources.Int) -> pd.Categorical:
        """Return the text of each id of StringIds, missing where there is none or it is an address."""
        sources.require(self._source, "StringIds", ("id", "value"))
        codes, numbers = pd.factorize(ids)
        texts = self._source.strings(int(number) for number in numbers)
        labels = [texts.get(int(number), "") for number in numbers]
        return category(
            codes, [label if label and not label.startswith(ADDRESS) else None for label in labels]
        )


def _symbol(unresolved: sources.Int, symbol: sources.Int) -> sources.Int:
    """Return the numbers of names, -1 for an address."""
    return np.where(unresolved > 0, np.int64(-1), symbol)


# What tables are made of: our column <- columns of the export; `stack` is a number of the export's
# own.
SAMPLE_MAP: sources.Reads = {
    **sources.THREAD,
    "start_ns": column("start", missing=sources.NEVER),
    "cpu": column("cpu", by=sources.in_32_bits),
    "stack": column("id"),
}
CALL_MAP: sources.Reads = {**sources.THREAD, **sources.INTERVAL, "stack": column("callchainId")}
FRAME_MAP: sources.Reads = {
    "id": column("id"),
    "depth": column("stackDepth"),
    "symbol": column("unresolved", "symbol", by=_symbol),
    "module": column("module"),
}


def _frames(
    function: pd.Categorical, module: pd.Categorical, stacks: sources.Int, lengths: sources.Int
) -> pd.DataFrame:
    """Return FRAMES from the frames of all chains: those of the first chain of each distinct stack."""
    _, chosen = np.unique(stacks, return_index=True)
    starts = np.cumsum(lengths) - lengths
    of_stack = np.repeat(np.arange(len(chosen)), lengths[chosen])
    depth = _positions(lengths[chosen])
    rows = starts[chosen][of_stack] + depth
    is_name = np.array(
        [not label.startswith(MARKER) for label in function.categories] + [False], bool
    )
    columns = {
        "stack": stacks[chosen][of_stack],
        "depth": depth.astype(np.int32),
        "function": function[rows].remove_unused_categories(),
        "module": module[rows].remove_unused_categories(),
        "resolved": is_name[function.codes[rows]],
    }
    return sources.framed(tables.FRAMES, columns)


def _positions(lengths: sources.Int) -> sources.Int:
    """Return 0, 1, ... for each of some sequences, one after the other.

    >>> _positions(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)


def distinct(codes: sources.Int, lengths: sources.Int) -> sources.Int:
    """Return a number for each sequence of codes, from 0 in the order of the first of each; equal ones have one number.

    Sequences follow each other in `codes`. Neighbours are paired, and pairs numbered, until one
    number is left of each.

    >>> distinct(np.array([5, 6, 5, 5, 6, 6]), np.array([2, 1, 2, 1])).tolist()
    [0, 1, 0, 2]
    """
    numbers = codes + 1  # 0 stands behind the last of an odd number of codes
    while len(lengths) and lengths.max() > 1:
        pairs = (lengths + 1) // 2
        place = 2 * _positions(pairs)
        left = np.repeat(np.cumsum(lengths) - lengths, pairs) + place
        has_right = place + 1 < np.repeat(lengths, pairs)
        right = np.where(has_right, numbers[np.minimum(left + 1, len(numbers) - 1)], 0)
        together = numbers[left] * (int(numbers.max()) + 1) + right
        numbers = pd.factorize(together)[0] + 1
        lengths = pairs
    return pd.factorize(numbers)[0].astype(np.int64)
