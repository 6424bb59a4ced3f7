"""A run seen through a choice of GPUs, a time window and kernels, checked against what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.errors import PerfkitError
from perfkit.run import Run

__all__ = ["Selection", "select"]

TIMED = ("kernels", "copies", "api_calls", "ranges")


def select(run: Run, *, gpus: Sequence[int] = (), window: Sequence[int] = (), kernels: str = "") -> Selection:
    """Return `run` seen through a choice; every analysis of it then speaks of the same part.

    Parameters
    ----------
    run
        A loaded run.
    gpus
        CUDA ordinals to keep, on every rank; empty keeps all.
    window
        (start_ns, end_ns) since the start of the capture; empty keeps all of it.
    kernels
        Keep the kernels whose name contains this text, or matches it where it holds ``*`` or ``?``;
        upper and lower case are alike. Empty keeps all.

    Returns
    -------
    Selection
        Has `kernels` (the chosen ones), `other_kernels`, `copies`, `api_calls`, `ranges`, `samples`,
        `launches` with their `counters`, `stalls` and `rules` (measured in runs of their own: a window does
        not apply), `devices` and `window`, which is None or the window as a tuple.

    Raises
    ------
    PerfkitError
        If a GPU has no activity in the run, the window reaches beyond the recording, or no kernel
        matches: a figure of something that was not recorded would be wrong, not zero.
    """
    chosen = Selection(run, tuple(int(g) for g in gpus), _window(run, window), kernels)
    if chosen.gpus:
        _check_gpus(run, chosen.gpus)
    if kernels and not len(chosen.kernels) and not len(chosen.launches):
        raise PerfkitError(_no_kernel(run, kernels))
    return chosen


class Selection:
    """The part of a run that `select` chose; tables are filtered when first asked for.

    Tables are whole rows: the analyses cut them at the window's edges.
    """

    def __init__(self, run: Run, gpus: tuple[int, ...], window: tuple[int, int] | None, pattern: str) -> None:
        self.run, self.gpus, self.window, self.pattern = run, gpus, window, pattern

    def __repr__(self) -> str:
        return f"<perfkit.Selection: {self.description}>"

    @property
    def description(self) -> str:
        """What was chosen, in words."""
        gpus = "GPU " + ", ".join(map(str, self.gpus)) if self.gpus else "all GPUs"
        window = "the whole recording"
        if self.window:
            window = f"{self.window[0] / 1e9:.6g} s to {self.window[1] / 1e9:.6g} s"
        kernels = f"kernels matching {self.pattern!r}" if self.pattern else "all kernels"
        return f"{gpus}, {window}, {kernels}"

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """KERNELS of the chosen GPUs whose name was chosen."""
        every = self.all_kernels
        return every[_named(every, self.pattern)] if self.pattern else every

    @cached_property
    def other_kernels(self) -> pd.DataFrame:
        """KERNELS of the chosen GPUs whose name was not chosen: they keep the GPU busy all the same."""
        every = self.all_kernels
        return every[~_named(every, self.pattern)] if self.pattern else every.iloc[:0]

    @cached_property
    def all_kernels(self) -> pd.DataFrame:
        """KERNELS of the chosen GPUs."""
        return self._on_gpus(self.run.kernels)

    @cached_property
    def copies(self) -> pd.DataFrame:
        """COPIES of the chosen GPUs."""
        return self._on_gpus(self.run.copies)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """SAMPLES of the chosen GPUs."""
        return self._on_gpus(self.run.samples)

    @cached_property
    def launches(self) -> pd.DataFrame:
        """LAUNCHES of the chosen GPUs whose name was chosen."""
        every = self._on_gpus(self.run.launches)
        return every[_named(every, self.pattern)] if self.pattern else every

    @cached_property
    def counters(self) -> pd.DataFrame:
        """COUNTERS of the chosen launches."""
        return self._of_launches(self.run.counters)

    @cached_property
    def stalls(self) -> pd.DataFrame:
        """STALLS of the chosen launches."""
        return self._of_launches(self.run.stalls)

    @cached_property
    def rules(self) -> pd.DataFrame:
        """RULES of the chosen launches."""
        return self._of_launches(self.run.rules)

    def _of_launches(self, frame: pd.DataFrame) -> pd.DataFrame:
        if not self.gpus and not self.pattern:
            return frame
        keys = [pd.MultiIndex.from_frame(f[["rank", "launch"]]) for f in (frame, self.launches)]
        return frame[keys[0].isin(keys[1])]

    @cached_property
    def devices(self) -> pd.DataFrame:
        """DEVICES that were chosen, or that ran something when none was chosen."""
        used = pd.concat([self.all_kernels[["rank", "gpu"]], self.copies[["rank", "gpu"]]]).drop_duplicates()
        found = self.run.devices.merge(used, on=["rank", "gpu"])
        # AMD's kernels name their GPU by another number than the list of devices.
        return found if len(found) else self._on_gpus(self.run.devices)

    @property
    def api_calls(self) -> pd.DataFrame:
        """API_CALLS of all processes: a thread may launch on any GPU."""
        return self.run.api_calls

    @cached_property
    def framework(self) -> Selection:
        """The same choice of what the framework's profiler alone recorded.

        Operators launch the kernels of their own execution: those of another tool's are no answer to them.
        """
        readers = {p.reader for p in self.run.profiles if "OPS" in p.loaders}
        if not readers or {p.reader for p in self.run.profiles} == readers:
            return self
        return Selection(self.run.of(min(readers)), self.gpus, self.window, self.pattern)

    @property
    def ops(self) -> pd.DataFrame:
        """OPS of all threads."""
        return self.run.ops

    @property
    def python_calls(self) -> pd.DataFrame:
        """PYTHON_CALLS of all threads."""
        return self.run.python_calls

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """COLLECTIVES of the chosen GPUs."""
        return self._on_gpus(self.run.collectives)

    @property
    def ranges(self) -> pd.DataFrame:
        """RANGES of all threads."""
        return self.run.ranges

    def _on_gpus(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["gpu"].isin(self.gpus)] if self.gpus else frame


def extent(run: Run) -> tuple[int, int]:
    """Return the start and end of what was recorded, ns: from time 0 or the first event to the last or the end."""
    start, end = 0, 0
    for name in TIMED:
        frame = run.table(name.upper())
        if len(frame):
            start = min(start, int(frame["start_ns"].min()))
            end = max(end, int((frame["start_ns"] + frame["dur_ns"]).max()))
    capture = run.capture
    first = capture["t0_unix_ns"].min()
    shift = (capture["t0_unix_ns"] - first).fillna(0).astype("int64")
    return start, max(end, int((capture["dur_ns"] + shift).max()))


def _window(run: Run, window: Sequence[int]) -> tuple[int, int] | None:
    if not len(window):
        return None
    if len(window) != 2 or window[1] <= window[0]:
        raise PerfkitError(f"window: {list(window)} is not a start and a later end in ns. Give both, start first.")
    first, last = int(window[0]), int(window[1])
    if len(run.calltree) and all(run.table(name.upper()).empty for name in (*TIMED, "samples")):
        raise PerfkitError(
            "window: the metrics of call paths are sums over the whole run, of which no part can be looked at. "
            "Choose no window, or record a timeline (nsys profile, or PyTorch's profiler)."
        )
    start, end = extent(run)
    if first < start or last > end:
        raise PerfkitError(
            f"window: {first / 1e9:.9g} s to {last / 1e9:.9g} s reaches beyond the recording, which spans "
            f"{start / 1e9:.9g} s to {end / 1e9:.9g} s. Choose a window inside it."
        )
    return first, last


def _check_gpus(run: Run, gpus: tuple[int, ...]) -> None:
    frames = [run.kernels["gpu"], run.copies["gpu"], run.samples["gpu"], run.launches["gpu"]]
    known = sorted({int(g) for frame in frames for g in frame.unique()})
    unknown = [g for g in gpus if g not in known]
    if unknown:
        raise PerfkitError(
            f"gpus: the run has no activity on GPU {', '.join(map(str, unknown))}. "
            + (f"Choose from {', '.join(map(str, known))}." if known else "It has no GPU activity at all.")
        )


def _no_kernel(run: Run, pattern: str) -> str:
    names = [str(name) for frame in (run.kernels, run.launches) for name in frame["name"].cat.categories]
    close = get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
    return f"kernels: none of the {len(names)} kernel names contains {pattern!r}. " + (
        f"Choose for example {', '.join(map(repr, close))}." if names else "The run has no kernels."
    )


def _named(frame: pd.DataFrame, pattern: str) -> pd.Series:
    """Say which rows of KERNELS or LAUNCHES have a short or full name that matches."""
    return pd.Series(_matches(frame["name"], pattern) | _matches(frame["full_name"], pattern), frame.index)


def _matches(names: pd.Series, pattern: str) -> NDArray[np.bool_]:
    """Say which rows' name matches; each distinct name is looked at once."""
    wanted = pattern.casefold()
    is_glob = any(c in wanted for c in "*?")
    texts = [str(name).casefold() for name in names.cat.categories]
    hits = [fnmatchcase(text, wanted) if is_glob else wanted in text for text in texts]
    return np.array([*hits, False], bool)[names.cat.codes.to_numpy()]
