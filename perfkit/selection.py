"""A run seen through a choice of ranks, GPUs, a time window and kernels, checked against what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import pandas as pd

from perfkit import given
from perfkit.analysis import steps as iterations
from perfkit.analysis.causes import where
from perfkit.analysis.intervals import devices, spans
from perfkit.analysis.ranks import begun, common, extents, lengthened, reach
from perfkit.errors import PerfkitError
from perfkit.format import duration
from perfkit.names.families import FAMILIES, family
from perfkit.names.parsing import matching
from perfkit.run import Recorded, Run
from perfkit.tables import LAUNCHES

TIMED = ("KERNELS", "COPIES", "API_CALLS", "RANGES")
MOST_COMPARED = 500  # names; more would let whoever types wait
ACTIVE = ("KERNELS", "COPIES", "SAMPLES", "LAUNCHES")
SPANS = 4  # captures whose times a message lists


def _part(
    choose: Callable[[Any, pd.DataFrame], pd.DataFrame], table: str, of: str
) -> cached_property[pd.DataFrame]:
    """Return the property of a Selection that holds the chosen rows of a table."""

    def chosen(selection: Selection) -> pd.DataFrame:
        return choose(selection, selection.run.table(table))

    chosen.__doc__ = f"{table} {of}."
    return cached_property(chosen)


class Part(Enum):
    """What a selection is of a recording."""

    CHOICE = "a user's choice, of which a part may be judged"
    LOOP = "the loop, which alone is judged"
    WHOLE = "all of it, and all is judged: start-up, pauses and the end count too"


class Selection:
    """The part of a run that `select` chose: whole rows, filtered when asked for; analyses cut them at the window."""

    def __init__(
        self,
        run: Run,
        ranks: tuple[int, ...],
        gpus: tuple[int, ...],
        window: tuple[int, int] | None,
        pattern: str,
        families: tuple[str, ...] = (),
        part: Part = Part.CHOICE,
        traced_window: tuple[int, int] | None = None,
    ) -> None:
        self.run, self.ranks, self.gpus, self.window = run, ranks, gpus, window
        self.pattern, self.families = pattern, families
        self.part = part
        # Of the part that is judged: the loop in what the framework's profiler recorded, where that is another run.
        self.traced_window = traced_window
        self._whole: Selection | None = None

    def __repr__(self) -> str:
        return f"<perfkit.Selection: {self.description}>"

    @property
    def selection(self) -> Selection:
        """The choice itself, so that a cell asks a still choice as it asks an explorer for its present one."""
        return self

    @property
    def choice(self) -> tuple[object, ...]:
        """What was chosen: equal choices of a run show the same."""
        return self.ranks, self.gpus, self.window, self.pattern, self.families

    @property
    def whole(self) -> Selection:
        """The choice with the recordings of all tools, of which this may be `framework`; else the choice itself."""
        return self._whole or self

    @cached_property
    def measured(self) -> tuple[int, int] | dict[int, tuple[int, int]] | None:
        """The time over which GPUs are measured: the window, else that of ranks, else None.

        Ranks on one clock are measured from the first to the last operation of all chosen GPUs, but no rank before
        its first or after its last recorded event (`analysis.ranks.extents`). A rank is measured over its `stepped`
        time where that is longer. None, and a rank that is not listed: over the rank's own operations.
        """
        if self.window is not None:
            return self.window
        return {**self._compared, **self.stepped} or None

    @cached_property
    def stepped(self) -> dict[int, tuple[int, int]]:
        """The time of each rank, ns, whose marked steps last clearly longer than its GPUs' work.

        It is that of the whole recording (`analysis.ranks.lengthened`); a window that a user chose has none.
        """
        if self.window is not None and self.part is Part.CHOICE:
            return {}
        worked = reach((self.all_kernels, self.copies))
        own = {int(rank): (int(first), int(last)) for rank, first, last in worked.itertuples()}
        found = self._recorded_steps
        marked = found[found["how"].ne("kernel sequence") & found["rank"].isin(list(own))]
        spans = {**own, **self._compared}
        if not lengthened(spans, marked):
            return {}
        events = self.api_calls, self.os_calls, self.ranges, self.ops, self.python_calls
        seen = extents(self.all_kernels, self.copies, self.api_calls, self.ranges, self.ops)
        last = begun(marked, events).clip(upper=seen["seen_last"])
        return lengthened(spans, marked, last)

    @cached_property
    def _compared(self) -> dict[int, tuple[int, int]]:
        """The time over which each of several ranks on one clock is compared, ns; nothing without these."""
        ranks = {
            int(rank)
            for frame in (self.all_kernels, self.copies)
            for rank in frame["rank"].unique()
        }
        if len(ranks) < 2 or not self.run.is_on_one_clock:
            return {}
        of_ranks = (self._on_ranks(frame) for frame in (self.run.kernels, self.run.copies))
        recorded = extents(*of_ranks, self.api_calls, self.ranges, self.ops)
        return common(
            reach((self.all_kernels, self.copies)).join(recorded[["seen_first", "seen_last"]])
        )

    @property
    def is_loop(self) -> bool:
        """Whether it is the loop that perfkit found, which alone is judged."""
        return self.part is Part.LOOP

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
            part = "the loop, " if self.is_loop else ""
            window = f"{part}{self.window[0] / 1e9:.6g} s to {self.window[1] / 1e9:.6g} s"
        family = f"{', '.join(self.families)} " if self.families else ""
        matching = f" matching {self.pattern!r}" if self.pattern else ""
        return f"{ranks}{gpus}, {window}, {family or ('' if matching else 'all ')}kernels{matching}"

    def _on_ranks(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["rank"].isin(self.ranks)] if self.ranks else frame

    def _of_processes(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the chosen ranks, without processes that work on other GPUs only."""
        kept = self._on_ranks(frame)
        elsewhere = self._elsewhere
        if elsewhere.empty or kept.empty:
            return kept
        keys = [pd.MultiIndex.from_frame(f[["rank", "process"]]) for f in (kept, elsewhere)]
        return kept[~keys[0].isin(keys[1])]

    @cached_property
    def _elsewhere(self) -> pd.DataFrame:
        """Rank and process of each process that works on GPUs, and on none of the chosen ones."""
        place = ["rank", "process"]
        tables = (self.run.kernels, self.run.copies) if self.gpus else ()
        worked = [table[[*place, "gpu"]].drop_duplicates() for table in tables]
        if not worked:
            return self.run.kernels.iloc[:0][place]
        every = pd.concat(worked)
        here = every["gpu"].isin(self.gpus).groupby([every["rank"], every["process"]])
        is_here = here.any().rename("here").reset_index()
        known = is_here["process"] >= 0  # whose process was recorded
        return is_here.loc[known & ~is_here["here"], place]

    def _on_gpus(self, frame: pd.DataFrame) -> pd.DataFrame:
        kept = self._on_ranks(frame)
        return kept[kept["gpu"].isin(self.gpus)] if self.gpus else kept

    def _of_launches(self, frame: pd.DataFrame) -> pd.DataFrame:
        if not (self.ranks or self.gpus or self.filtered):
            return frame
        keys = [pd.MultiIndex.from_frame(f[["rank", "launch"]]) for f in (frame, self.launches)]
        return frame[keys[0].isin(keys[1])]

    copies = _part(_on_gpus, "COPIES", "of the chosen GPUs")
    collectives = _part(_on_gpus, "COLLECTIVES", "of the chosen GPUs")
    # A thread may launch on any GPU: a process is left out if it works on other GPUs only.
    api_calls = _part(_of_processes, "API_CALLS", "of the processes of the chosen GPUs")
    os_calls = _part(_of_processes, "OS_CALLS", "of the processes of the chosen GPUs")
    stacks = _part(_of_processes, "STACKS", "of the processes of the chosen GPUs")
    frames = _part(_on_ranks, "FRAMES", "of all stacks of the chosen ranks")
    schedule = _part(_of_processes, "SCHEDULE", "of the processes of the chosen GPUs")
    waits = _part(
        _on_ranks,
        "WAITS",
        "of all GPUs of the chosen ranks: a stream of one waits for events of another",
    )
    overhead = _part(_of_processes, "OVERHEAD", "of the processes of the chosen GPUs")
    diagnostics = _part(_of_processes, "DIAGNOSTICS", "of the processes of the chosen GPUs")
    memory_events = _part(_on_gpus, "MEMORY_EVENTS", "of the chosen GPUs")
    ops = _part(_of_processes, "OPS", "of the processes of the chosen GPUs")
    python_calls = _part(_of_processes, "PYTHON_CALLS", "of the processes of the chosen GPUs")
    ranges = _part(_of_processes, "RANGES", "of the processes of the chosen GPUs")
    counters = _part(_of_launches, "COUNTERS", "of the chosen launches")
    stalls = _part(_of_launches, "STALLS", "of the chosen launches")
    rules = _part(_of_launches, "RULES", "of the chosen launches")

    @cached_property
    def samples(self) -> pd.DataFrame:
        """SAMPLES of the chosen GPUs, without the readings of a log before and after a timeline of the same run."""
        return self._readings[0]

    @cached_property
    def readings_elsewhere(self) -> pd.DataFrame:
        """The readings that `samples` leaves out, of the chosen GPUs."""
        return self._readings[1]

    @cached_property
    def _readings(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        every = self._on_gpus(self.run.samples)
        worked = (
            reach((self.run.kernels, self.run.copies)) if _is_logged(self.run) else pd.DataFrame()
        )
        if worked.empty:
            return every, every.iloc[:0]
        of_log = every["metric"].isin(self.run.of("monitor").samples["metric"].unique())
        inside = every["time_ns"].between(int(worked["first"].min()), int(worked["last"].max()))
        if not (of_log & inside).any():
            return every, every.iloc[:0]
        return every[inside | ~of_log], every[of_log & ~inside]

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """KERNELS of the chosen GPUs whose name was chosen."""
        every = self.all_kernels
        return every[named(every, self.pattern, self.families)] if self.filtered else every

    @cached_property
    def other_kernels(self) -> pd.DataFrame:
        """KERNELS of the chosen GPUs whose name was not chosen: they keep the GPU busy all the same."""
        every = self.all_kernels
        return (
            every[~named(every, self.pattern, self.families)] if self.filtered else every.iloc[:0]
        )

    @cached_property
    def all_kernels(self) -> pd.DataFrame:
        """KERNELS of the chosen GPUs."""
        return self._on_gpus(self.run.kernels)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """STEPS of the chosen GPUs in the window: what is `repeated`, but for launches of one kernel alone."""
        return iterations.without_launches(self.repeated, self.all_kernels, self.copies)

    @cached_property
    def repeated(self) -> pd.DataFrame:
        """STEPS of the chosen GPUs in the window, by all that was recorded (`analysis.steps.detect`)."""
        found = self._recorded_steps
        return iterations.inside(found, self.window, self.all_kernels, self.api_calls)

    @cached_property
    def _recorded_steps(self) -> pd.DataFrame:
        """STEPS of the chosen GPUs in the whole recording."""
        calls = {"api_calls": self.api_calls, "python_calls": self.python_calls}
        return iterations.detect(self.ranges, self.all_kernels, **calls)

    @cached_property
    def launches(self) -> pd.DataFrame:
        """LAUNCHES of the chosen GPUs whose name was chosen, without the shares above 1 that a tool may write."""
        launches = self._on_gpus(self.run.launches)
        bounds = {column.name: column.most for column in LAUNCHES.columns if column.slack}
        above = {name: launches[name] > most for name, most in bounds.items()}
        every = launches.assign(
            **{name: launches[name].mask(wrong) for name, wrong in above.items() if wrong.any()}
        )
        return every[named(every, self.pattern, self.families)] if self.filtered else every

    @cached_property
    def devices(self) -> pd.DataFrame:
        """DEVICES that were chosen, or that ran something when none was chosen."""
        used = reaches(self.run)[["rank", "gpu"]]
        active = self.run.devices.merge(self._on_gpus(used), on=["rank", "gpu"])
        # AMD's kernels name their GPU by another number than the list of devices.
        return active if len(active) else self._on_gpus(self.run.devices)

    @cached_property
    def framework(self) -> Selection:
        """The same choice of what the framework's profiler recorded: its operators launch kernels of that execution.

        Of the part that is judged it is the loop of that execution: the loop of another one lies at another time.
        """
        readers = {p.reader for p in self.run.profiles if "OPS" in p.loaders}
        if not readers or {p.reader for p in self.run.profiles} == readers:
            return self
        window = self.window if self.part is Part.CHOICE else self.traced_window
        traced = self.run.of(min(readers))
        part = Selection(traced, self.ranks, self.gpus, window, self.pattern, self.families)
        part._whole = self
        return part


_REACHES: WeakKeyDictionary[Run, pd.DataFrame] = WeakKeyDictionary()


def _is_logged(run: Run) -> bool:
    """Tell whether a run holds a timeline and a log of its GPUs, and every file says when it began."""
    if "monitor" not in run.kinds or not any(
        "KERNELS" in profile.loaders for profile in run.profiles
    ):
        return False
    timed = [profile for profile in run.profiles if {*TIMED, "SAMPLES"} & set(profile.loaders)]
    return all(profile.span is not None for profile in timed)


_HELD: WeakKeyDictionary[Run, WeakValueDictionary[str, Selection]] = (
    WeakKeyDictionary()
)  # by what was chosen


def select(
    run: Run,
    *,
    ranks: given.Numbers = (),
    gpus: given.Numbers = (),
    window: given.Window = (),
    kernels: str = "",
    families: given.Words = (),
) -> Selection:
    """Return `run` seen through a choice; every analysis of it then speaks of the same part.

    What is empty keeps all: `ranks`; `gpus`, CUDA ordinals on every rank; `window`, (start_ns, end_ns) since the
    start of the capture, or a text such as ``5s:7s``; `kernels`, a text that the kernel's name contains, or matches
    where it holds ``*`` or ``?``, upper and lower case alike; `families` of kernels (`perfkit.names.FAMILIES`). Lists
    can also be texts such as ``0,2`` or ``[1]``, or one number, as papermill passes them (`perfkit.given`).

    The Selection's `kernels` are the chosen ones; `launches`, `counters`, `stalls` and `rules` were measured in runs of
    their own, to which a window does not apply. PerfkitError if a rank was not recorded, a GPU has no activity in the
    run, the window reaches beyond the recording, a family does not exist, or no kernel matches: a figure of something
    that was not recorded would be wrong, not zero.
    """
    of_ranks, of_gpus = parsed("ranks", ranks), parsed("gpus", gpus)
    edges, of_families = parsed("window", window), parsed("families", families)
    pattern = str(kernels)  # papermill makes a number of a text such as 1024
    held = _HELD.setdefault(run, WeakValueDictionary())
    key = repr([of_ranks, of_gpus, edges, of_families, pattern])
    same = held.get(key)
    if same is not None:
        return same
    # Refuse families that do not exist.
    unknown = [one for one in of_families if one not in FAMILIES]
    if unknown:
        raise PerfkitError(
            f"families: {', '.join(map(repr, unknown))} is unknown. Choose from {', '.join(FAMILIES)}."
        )
    if of_ranks and run.is_large:
        run = run.on_ranks(of_ranks)
    check_ranks(run, of_ranks)
    of_time = checked_window(run, edges)
    chosen = Selection(run, of_ranks, of_gpus, of_time, pattern, of_families)
    check_recorded(chosen)
    if chosen.gpus:
        check_gpus(run, chosen.gpus, chosen.ranks)
    if (
        chosen.filtered
        and not named(chosen.all_kernels, pattern, of_families).any()
        and not len(chosen.launches)
    ):
        raise no_kernel(run, pattern, of_families)
    return held.setdefault(key, chosen)


def parsed(name: str, value: Any) -> tuple[Any, ...]:
    """Return what a part of a choice lists, however it was written; PerfkitError names the part."""
    parse = {"window": given.window, "families": given.words}.get(name, given.numbers)
    try:
        return parse(value)
    except ValueError as e:
        raise PerfkitError(f"{name}: {e}.") from e


def reaches(run: Run) -> pd.DataFrame:
    """Return from when to when each GPU worked: rank, gpu, first_ns and last_ns of its kernels and copies."""
    if run not in _REACHES:
        index, groups = devices(run.kernels, run.copies)
        first, last = spans([run.kernels, run.copies], groups, len(index), None, own=True)
        _REACHES[run] = index.assign(first_ns=first, last_ns=last)
    return _REACHES[run]


def check_recorded(chosen: Selection) -> None:
    """Refuse a window before the first or after the last operation of all chosen GPUs, without a reading of them.

    A window between two operations is none of these: there the recording says that the GPUs were idle.
    """
    worked = chosen._on_gpus(reaches(chosen.run)) if chosen.window else pd.DataFrame()
    if chosen.window is None or worked.empty:
        return
    start, end = chosen.window
    first, last = int(worked["first_ns"].min()), int(worked["last_ns"].max())
    if start < last and end > first:
        return
    if chosen.samples["time_ns"].between(start, end, inclusive="left").any():
        return
    raise PerfkitError(
        f"window: {start / 1e9:.9g} s to {end / 1e9:.9g} s holds no recorded data of a GPU. The first operation of "
        f"the chosen GPUs starts at {first / 1e9:.9g} s, the last one ends at {last / 1e9:.9g} s. "
        "Choose a window between them."
    )


def extent(run: Run) -> tuple[int, int]:
    """Return the start and end of what was recorded, ns: from time 0 or the first event to the last or the end."""
    starts, ends = [span.start_ns for span in run.recorded], [span.end_ns for span in run.recorded]
    return min([0, *starts]), max([0, *ends])


def uninterrupted(spans: Iterable[Recorded]) -> list[tuple[int, int]]:
    """Return the times at which something was recorded: spans that meet or overlap are one.

    >>> uninterrupted([Recorded("b", 20, 30), Recorded("a", 0, 10), Recorded("c", 5, 12)])
    [(0, 12), (20, 30)]
    """
    joined: list[tuple[int, int]] = []
    for _, start, end in sorted(spans, key=lambda span: span.start_ns):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def covers(spans: Iterable[Recorded], window: tuple[int, int]) -> bool:
    """Tell whether something was recorded all the time of a window."""
    return any(start <= window[0] and window[1] <= end for start, end in uninterrupted(spans))


def checked_window(run: Run, window: Sequence[int]) -> tuple[int, int] | None:
    """Return the window as two integers, None for all; refuse one that reaches beyond the recording."""
    if not len(window):
        return None
    first, last = parsed("window", window)
    if last <= first:
        edges = f"{duration(first)} to {duration(last)}"
        raise PerfkitError(f"window: {edges} does not end after its start. Give the start first.")
    if len(run.calltree) and all(run.table(name).empty for name in (*TIMED, "SAMPLES")):
        raise PerfkitError(
            "window: the metrics of call paths are sums over the whole run, of which no part can be looked at. "
            "Choose no window, or record a timeline (nsys profile, or PyTorch's profiler)."
        )
    if covers(run.captured, (first, last)):  # no table is read for it
        return first, last
    start, end = extent(run)
    if first < start or last > end:
        raise PerfkitError(
            f"window: {first / 1e9:.9g} s to {last / 1e9:.9g} s reaches beyond the recording, which spans "
            f"{start / 1e9:.9g} s to {end / 1e9:.9g} s. Choose a window inside it."
        )
    if not covers(run.recorded, (first, last)):
        first_spans = run.recorded[:SPANS]
        spans = ", ".join(
            f"{s.start_ns / 1e9:.9g} s to {s.end_ns / 1e9:.9g} s ({s.name})" for s in first_spans
        )
        raise PerfkitError(
            f"window: {first / 1e9:.9g} s to {last / 1e9:.9g} s reaches into a time at which nothing was recorded. "
            f"Recorded was {spans}{' and more' if len(run.recorded) > SPANS else ''}. Choose a window inside of one."
        )
    return first, last


def check_ranks(run: Run, ranks: Sequence[int]) -> None:
    """Refuse ranks of which nothing was recorded."""
    if not len(ranks):
        return
    recorded = {
        int(rank) for name in ("CAPTURE", *ACTIVE) for rank in run.table(name)["rank"].unique()
    }
    unknown = [rank for rank in ranks if rank not in recorded]
    if unknown:
        missing, present = (", ".join(map(str, ranks)) for ranks in (unknown, sorted(recorded)))
        raise PerfkitError(f"ranks: the run has no rank {missing}. Choose from {present}.")


def check_gpus(run: Run, gpus: Sequence[int], ranks: Sequence[int] = ()) -> None:
    """Refuse GPUs without activity on the chosen ranks."""
    frames = [run.table(name) for name in ACTIVE]
    of_ranks = [frame[frame["rank"].isin(ranks)] if ranks else frame for frame in frames]
    seen = {int(gpu) for frame in of_ranks for gpu in frame["gpu"].unique()}
    unknown = [gpu for gpu in gpus if gpu not in seen]
    if not unknown:
        return
    ordinals = sorted(gpu for gpu in seen if gpu >= 0)  # -1 stands for a GPU that is not recorded
    remedy = "It has no GPU activity at all."
    if ordinals:
        remedy = f"Choose from {', '.join(map(str, ordinals))}."
    elif seen:
        remedy = "It does not say on which GPU the activity was. Choose no GPU."
    missing = ", ".join(map(str, unknown))
    raise PerfkitError(f"gpus: the run has no activity on GPU {missing}. {remedy}")


def no_kernel(run: Run, pattern: str, families: Sequence[str]) -> PerfkitError:
    """Return the refusal of a choice that no kernel meets, with what could be chosen."""
    frames = (run.kernels, run.launches)
    names = [str(name) for frame in frames for name in frame["name"].cat.categories]
    if not names:
        return PerfkitError("kernels: the run has no kernels. Choose no kernels, or record some.")
    if families:
        present = {
            family(str(name)) for frame in frames for name in frame["full_name"].cat.categories
        }
        listed = ", ".join(one for one in FAMILIES if one in present)
        named = f" and contains {pattern!r}" if pattern else ""
        return PerfkitError(
            f"families: no kernel is of {', '.join(families)}{named}. The run has {listed}."
        )
    begun = [name for name in names if pattern[:3].casefold() in name.casefold()] or names
    close = get_close_matches(pattern, begun[:MOST_COMPARED], n=3, cutoff=0.3) or begun[:3]
    return PerfkitError(
        f"kernels: none of the {len(names)} kernel names contains {pattern!r}. "
        f"Choose for example {', '.join(map(repr, close))}."
    )


def named(frame: pd.DataFrame, pattern: str, families: Sequence[str] = ()) -> pd.Series:
    """Say which rows of KERNELS or LAUNCHES have a short or full name that matches, and one of the families."""
    chosen = np.ones(len(frame), bool)
    if pattern:
        short, full = (
            where(frame[name], lambda text: matching([text], pattern)[0])
            for name in ("name", "full_name")
        )
        chosen &= short | full
    if families and "family" in frame:
        chosen &= frame["family"].isin(families).to_numpy()
    elif families:
        chosen &= where(frame["full_name"], lambda text: family(text) in families)
    return pd.Series(chosen, frame.index)
