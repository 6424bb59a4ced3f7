"""A run seen through a choice of ranks, GPUs, a time window and kernels, checked against what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pandas as pd

from perfkit import choice
from perfkit.run import Run
from perfkit.tables import LAUNCHES

__all__ = ["Selection", "select"]


def select(
    run: Run,
    *,
    ranks: Sequence[int] = (),
    gpus: Sequence[int] = (),
    window: Sequence[int] = (),
    kernels: str = "",
    families: Sequence[str] = (),
) -> Selection:
    """Return `run` seen through a choice; every analysis of it then speaks of the same part.

    Parameters
    ----------
    run
        A loaded run.
    ranks
        Ranks to keep; empty keeps all.
    gpus
        CUDA ordinals to keep, on every rank; empty keeps all.
    window
        (start_ns, end_ns) since the start of the capture; empty keeps all of it.
    kernels
        Keep the kernels whose name contains this text, or matches it where it holds ``*`` or ``?``;
        upper and lower case are alike. Empty keeps all.
    families
        Keep the kernels of these families (`perfkit.names.FAMILIES`); empty keeps all.

    Returns
    -------
    Selection
        Has `kernels` (the chosen ones), `other_kernels`, `copies`, `api_calls`, `ranges`, `samples`,
        `launches` with their `counters`, `stalls` and `rules` (measured in runs of their own: a window does
        not apply), `devices` and `window`, which is None or the window as a tuple.

    Raises
    ------
    PerfkitError
        If a rank was not recorded, a GPU has no activity in the run, the window reaches beyond the recording,
        a family does not exist, or no kernel matches: a figure of something that was not recorded would be
        wrong, not zero.
    """
    choice.check_families(families)
    choice.check_ranks(run, ranks)
    kept = tuple(int(rank) for rank in ranks), tuple(int(gpu) for gpu in gpus)
    chosen = Selection(run, *kept, choice.window(run, window), kernels, tuple(families))
    if chosen.gpus:
        choice.check_gpus(run, chosen.gpus, chosen.ranks)
    if chosen.filtered and not len(chosen.kernels) and not len(chosen.launches):
        raise choice.no_kernel(run, kernels, families)
    return chosen


class Selection:
    """The part of a run that `select` chose; tables are filtered when first asked for.

    Tables are whole rows: the analyses cut them at the window's edges.
    """

    def __init__(
        self,
        run: Run,
        ranks: tuple[int, ...],
        gpus: tuple[int, ...],
        window: tuple[int, int] | None,
        pattern: str,
        families: tuple[str, ...] = (),
    ) -> None:
        self.run, self.ranks, self.gpus, self.window = run, ranks, gpus, window
        self.pattern, self.families = pattern, families

    def __repr__(self) -> str:
        return f"<perfkit.Selection: {self.description}>"

    @property
    def selection(self) -> Selection:
        """The choice itself, so that a cell asks a still choice as it asks an explorer for its present one."""
        return self

    @property
    def filtered(self) -> bool:
        """Whether some kernels are left out by their name or family."""
        return bool(self.pattern or self.families)

    @property
    def description(self) -> str:
        """What was chosen, in words."""
        ranks = "rank " + ", ".join(map(str, self.ranks)) + ", " if self.ranks else ""
        gpus = "GPU " + ", ".join(map(str, self.gpus)) if self.gpus else "all GPUs"
        window = "the whole recording"
        if self.window:
            window = f"{self.window[0] / 1e9:.6g} s to {self.window[1] / 1e9:.6g} s"
        family = f"{', '.join(self.families)} " if self.families else ""
        matching = f" matching {self.pattern!r}" if self.pattern else ""
        return f"{ranks}{gpus}, {window}, {family or ('' if matching else 'all ')}kernels{matching}"

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """KERNELS of the chosen GPUs whose name was chosen."""
        every = self.all_kernels
        return every[self._named(every)] if self.filtered else every

    @cached_property
    def other_kernels(self) -> pd.DataFrame:
        """KERNELS of the chosen GPUs whose name was not chosen: they keep the GPU busy all the same."""
        every = self.all_kernels
        return every[~self._named(every)] if self.filtered else every.iloc[:0]

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
        """LAUNCHES of the chosen GPUs whose name was chosen, without the shares above 1 that a tool may write."""
        every = _without_slack(self._on_gpus(self.run.launches))
        return every[self._named(every)] if self.filtered else every

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
        if not (self.ranks or self.gpus or self.filtered):
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

    @cached_property
    def api_calls(self) -> pd.DataFrame:
        """API_CALLS of all processes of the chosen ranks: a thread may launch on any GPU."""
        return self._on_ranks(self.run.api_calls)

    @cached_property
    def os_calls(self) -> pd.DataFrame:
        """OS_CALLS of all processes of the chosen ranks."""
        return self._on_ranks(self.run.os_calls)

    @cached_property
    def framework(self) -> Selection:
        """The same choice of what the framework's profiler alone recorded.

        Operators launch the kernels of their own execution: those of another tool's are no answer to them.
        """
        readers = {p.reader for p in self.run.profiles if "OPS" in p.loaders}
        if not readers or {p.reader for p in self.run.profiles} == readers:
            return self
        return Selection(self.run.of(min(readers)), self.ranks, self.gpus, self.window, self.pattern, self.families)

    @cached_property
    def ops(self) -> pd.DataFrame:
        """OPS of all threads of the chosen ranks."""
        return self._on_ranks(self.run.ops)

    @cached_property
    def python_calls(self) -> pd.DataFrame:
        """PYTHON_CALLS of all threads of the chosen ranks."""
        return self._on_ranks(self.run.python_calls)

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """COLLECTIVES of the chosen GPUs."""
        return self._on_gpus(self.run.collectives)

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """RANGES of all threads of the chosen ranks."""
        return self._on_ranks(self.run.ranges)

    def _on_ranks(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["rank"].isin(self.ranks)] if self.ranks else frame

    def _on_gpus(self, frame: pd.DataFrame) -> pd.DataFrame:
        kept = self._on_ranks(frame)
        return kept[kept["gpu"].isin(self.gpus)] if self.gpus else kept

    def _named(self, frame: pd.DataFrame) -> pd.Series:
        return choice.named(frame, self.pattern, self.families)


def _without_slack(launches: pd.DataFrame) -> pd.DataFrame:
    """Return LAUNCHES with what no figure may use as missing."""
    bounds = {column.name: column.most for column in LAUNCHES.columns if column.slack}
    above = {name: launches[name] > most for name, most in bounds.items()}
    return launches.assign(**{name: launches[name].mask(wrong) for name, wrong in above.items() if wrong.any()})
