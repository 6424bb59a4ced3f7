"""The explorer itself: choices that code and controls set alike, and the part of the run that they leave.

A choice that does not fit the run is a TraitError with what can be chosen. Choices that each fit, and together leave
nothing, are no error: `selection` is then None and `problem` a sentence. The last choice lies in the cache, which users
of one machine may share: each user has a folder there, closed to others, and a file is read only if it belongs to this
user and nobody else may write it. The content is checked all the same, like a choice that is typed. Without a cache
nothing is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from contextlib import suppress
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd
import traitlets

from perfkit import cache, selection
from perfkit.analysis.lanes import Lanes
from perfkit.analysis.ranks import to_open
from perfkit.errors import PerfkitError
from perfkit.format import printable
from perfkit.names.families import FAMILIES, family
from perfkit.readers.text import put
from perfkit.run import Run
from perfkit.selection import Selection, select
from perfkit.widgets.live import is_watched
from perfkit.widgets.parameters import CHOICES, FIELDS


def explorer(
    source: Run | Selection,
    *,
    show: str = "timeline",
    baseline: str | Path = "",
    peaks: str | Path = "",
) -> Explorer | Selection:
    """Return controls that choose a part of a run, with a view of it below.

    Where nobody can use controls (papermill, nbconvert, a program), the Selection itself: the views take either.
    `source`: a run, or a Selection to begin with. `show`: the name of the view below the controls; none when empty.
    `baseline`, `peaks`: paths of the earlier run and of the CSV file of peaks that the notebook was given, for the
    buttons *Copy as parameters* and *Report this window*. Raises ValueError if no view has the name. Of a store that is
    too large to open whole, the ranks worth opening and a typical one are chosen, unless you chose ranks.
    """
    view = source if isinstance(source, Selection) else select(source)
    if view.run.is_large and not view.ranks:
        ranks = tuple(to_open(view.run.reduced.by_device()))
        view = Selection(
            view.run.on_ranks(ranks), ranks, view.gpus, view.window, view.pattern, view.families
        )
    if is_watched():
        return Explorer(view, show=show, baseline=baseline, peaks=peaks)
    from perfkit.widgets.page import maker

    maker(show)
    return view


_LANES: WeakKeyDictionary[Run, Lanes] = (
    WeakKeyDictionary()
)  # a cell that is run again does not sort again


class Offer:
    """Ranks, GPUs, kernel names (most time first), families and the time axis (ns; may be empty) of a run."""

    def __init__(self, run: Run, lanes: Lanes) -> None:
        # The operations of the timeline were looked through for the lanes.
        rest = [run.table(name) for name in selection.ACTIVE if name not in ("KERNELS", "COPIES")]
        pairs = [frame[["rank", "gpu"]].drop_duplicates() for frame in (lanes.devices, *rest)]
        self.places = {
            (int(rank), int(gpu)) for frame in pairs for rank, gpu in frame.itertuples(index=False)
        }
        ranks = {int(rank) for rank in run.capture["rank"]} | {rank for rank, _ in self.places}
        self.ranks, self.gpus = tuple(sorted(ranks)), tuple(sorted({gpu for _, gpu in self.places}))
        self.names = lanes.names
        if not len(lanes.names):  # the kernels that only counters know
            total = (
                run.launches.groupby("name", observed=True)["dur_ns"]
                .sum()
                .sort_values(ascending=False, kind="stable")
            )
            self.names = pd.DataFrame(
                {"name": total.index, "family": None, "total_ns": total.to_numpy()}
            )
        counted = {family(str(name)) for name in run.launches["full_name"].cat.categories}
        self.families = tuple(
            one for one in FAMILIES if one in counted or lanes.matching("", [one]).any()
        )
        self.span = _span(run, lanes)


LONGEST_CHOICE = 100_000  # bytes that are read
CHOICE, LANES = (
    ".json",
    ".lanes",
)  # how the names of the files end in which a choice, and arranged lanes are stored
ARRANGED = ("shown", "hidden", "closed", "pinned", "opened")  # lanes of a timeline
LONGEST = 120  # characters of a pattern in a sentence


class Explorer(traitlets.HasTraits):
    """A choice of a run that can be changed; `view` are the controls, and below them the view of the choice.

    `ranks`, `gpus`, `window`, `kernels` and `families` can be set to all that `perfkit.select` takes. Observe
    `selection`, the Selection or None, and `problem`, why there is none: both change once per choice. `lanes` are the
    run's sorted operations, `totals` the time per kernel name, `last` the choice of an earlier session, offered and
    never taken, `files` the paths beside the run by the notebooks' parameter. `arranged` are the lanes of the timeline
    that are `shown` beside the streams, and the labels of those `hidden`, `closed`, `pinned` and `opened`: kept for
    the run.
    """

    ranks: Any = traitlets.Any(())
    gpus: Any = traitlets.Any(())
    window: Any = traitlets.Any(())
    kernels = traitlets.Unicode("")
    families: Any = traitlets.Any(())
    selection: Any = traitlets.Any()
    problem = traitlets.Unicode("")
    arranged: Any = traitlets.Dict()

    def __init__(
        self,
        source: Run | Selection,
        *,
        show: str = "timeline",
        baseline: str | Path = "",
        peaks: str | Path = "",
    ) -> None:
        super().__init__()
        given = {"baseline": baseline, "peaks": peaks}
        self.files = {name: str(Path(path).resolve()) for name, path in given.items() if path}
        start = source if isinstance(source, Selection) else select(source)
        self.run, self._start = start.run, start
        self.lanes = lanes_of(self.run)
        self.offer = Offer(self.run, self.lanes)
        self.totals = self.lanes.totals()
        self.last: dict[str, Any] = {}
        self._begin(start)
        self.arranged = last_lanes(self.run)
        self.observe(self._changed, CHOICES)
        self.observe(lambda change: store(self.run, change["new"], LANES), "arranged")
        from perfkit.widgets.page import Page

        self.view = Page(self, show)

    def __repr__(self) -> str:
        return f"<perfkit.widgets.Explorer: {self.selection.description if self.selection else self.problem}>"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    @property
    def parameters(self) -> dict[str, Any]:
        """The choice as the notebooks' parameters and `perfkit.select` take it."""
        lists = {name: list(getattr(self, name)) for name in CHOICES if name != "kernels"}
        return {name: lists.get(name, self.kernels) for name in CHOICES}

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The iterations of each rank, as `analysis.steps.detect` finds them."""
        return select(self.run).steps

    @property
    def on_lanes(self) -> dict[str, Any] | None:
        """The choice as `Lanes` takes it; None if it leaves no device with operations."""
        return self.lanes.asked(self.ranks, self.gpus, self.kernels, self.families)

    def choose(self, **choices: Any) -> None:
        """Set several choices at once, or none of them; raises TraitError if one of them does not fit the run."""
        with self.hold_trait_notifications():
            for name, value in choices.items():
                self.set_trait(name, value)

    def reset(self) -> None:
        """Choose everything."""
        self.choose(ranks=(), gpus=(), window=(), kernels="", families=())

    def jump(self, step: int) -> None:
        """Set the window to a step, on all ranks that are chosen and have it; raises ValueError if there is none."""
        there = self.steps[self.steps["rank"].isin(self.ranks)] if self.ranks else self.steps
        rows = there[there["step"] == step]
        if rows.empty:
            numbers = f"0 to {there['step'].max()}" if len(there) else "none: nothing repeats"
            raise ValueError(f"step: {step} is not among the steps that were found ({numbers})")
        self.window = int(rows["start_ns"].min()), int((rows["start_ns"] + rows["dur_ns"]).max())

    def lead(self, row: str) -> None:
        """Choose the time of a table's row (JSON, names escaped), with some before and after, or else its kernel."""
        with suppress(ValueError, TypeError, KeyError, traitlets.TraitError):
            values = json.loads(row)
            if "start_ns" in values:
                start, dur = int(values["start_ns"]), int(values["dur_ns"])
                around = 0 if "step" in values else dur // 2 + 1
                first, last = self.offer.span
                self.window = max(start - around, first), min(start + dur + around, last)
            elif "family" in values:
                self.kernels = unescape(values["name"])

    @traitlets.validate("ranks", "gpus", "families")
    def _listed(self, proposal: Any) -> tuple[Any, ...]:
        name, legal = proposal["trait"].name, getattr(self.offer, proposal["trait"].name)
        chosen = tuple(dict.fromkeys(_parsed(name, proposal["value"])))
        unknown = [one for one in chosen if one not in legal]
        if unknown:
            choices = ", ".join(map(str, legal)) or "nothing: the run has none"
            listed = printable(", ".join(map(repr, unknown)), LONGEST)
            raise traitlets.TraitError(
                f"{name}: the run does not have {listed}. Choose from {choices}."
            )
        return tuple(sorted(chosen, key=legal.index)) if name == "families" else chosen

    @traitlets.validate("window")
    def _inside(self, proposal: Any) -> tuple[int, ...]:
        window = _parsed("window", proposal["value"])
        span = self.offer.span
        # Every choice asks: what lies between operations needs no look at the rest of the recording.
        is_inside = len(window) == 2 and span and span[0] <= window[0] < window[1] <= span[1]
        if is_inside and len(selection.uninterrupted(self.run.captured)) < 2:
            return window
        try:
            return selection.checked_window(self.run, window) or ()
        except PerfkitError as e:
            raise traitlets.TraitError(str(e)) from e

    def _begin(self, start: Selection) -> None:
        """Take the choice that was given. The last one of an earlier session is offered if it leaves something."""
        given = {
            "ranks": start.ranks,
            "gpus": start.gpus,
            "window": start.window or (),
            "kernels": start.pattern,
        }
        stored = last_choice(self.run)
        with suppress(traitlets.TraitError, PerfkitError):
            self.choose(**stored)
            self._chosen()
            self.last = self.parameters if stored else {}
        self.choose(**given, families=start.families)
        if self.last == self.parameters:
            self.last = {}
        self._settle()

    def _changed(self, _: Any) -> None:
        """Settle a choice that somebody made, once: setting several traits at once calls this for each."""
        if self._settled == self.parameters:
            return
        self._settle()
        if self.selection is not None:
            store(self.run, self.parameters)

    def _settle(self) -> None:
        self._settled = self.parameters
        try:
            chosen, problem = self._chosen(), ""
        except PerfkitError as e:
            chosen, problem = None, str(e)
        with self.hold_trait_notifications():
            self.selection, self.problem = chosen, problem

    def _chosen(self) -> Selection:
        """Return the Selection; its tables are filtered when a view asks for them."""
        places = self.offer.places
        if self.ranks and any(
            all((rank, gpu) not in places for rank in self.ranks) for gpu in self.gpus
        ):
            selection.check_gpus(self.run, self.gpus, self.ranks)
        window: tuple[int, int] | None = self.window or None
        chosen = Selection(self.run, self.ranks, self.gpus, window, self.kernels, self.families)
        if chosen.choice == self._start.choice:
            chosen = self._start  # its figures and findings are there, the same as in a report
        selection.check_recorded(chosen)
        asked = self.on_lanes
        self.totals = (
            self.totals.iloc[:0] if asked is None else self.lanes.totals(window=window, **asked)
        )
        has_kernels = bool(len(self.run.kernels))
        if (
            chosen.filtered
            and self.totals.empty
            and ((window and has_kernels) or chosen.launches.empty)
        ):
            raise self._nothing(chosen)
        return chosen

    def _nothing(self, chosen: Selection) -> PerfkitError:
        """Return the refusal of a name or family that has no kernel: in the run, or in what else is chosen."""
        if not self.lanes.matching(self.kernels, self.families).any():
            return selection.no_kernel(self.run, self.kernels, self.families)
        return PerfkitError(
            f"kernels: nothing ran of {printable(chosen.description, 4 * LONGEST)}. "
            "Choose a longer window, other GPUs, or other kernels."
        )


def _parsed(name: str, value: Any) -> tuple[Any, ...]:
    """Return what a part of a choice lists; TraitError if it is not written as one."""
    try:
        return selection.parsed(name, value)
    except PerfkitError as e:
        raise traitlets.TraitError(str(e)) from e


def lanes_of(run: Run) -> Lanes:
    """Return the Lanes of a run."""
    if run not in _LANES:
        _LANES[run] = Lanes(run.kernels, run.copies, selection.select(run).stepped)
    return _LANES[run]


def _span(run: Run, lanes: Lanes) -> tuple[int, ...]:
    """Return the axis of time: that of the operations and marked steps, or the recording where there is none."""
    if len(lanes.devices):
        return lanes.span if lanes.span[1] > lanes.span[0] else ()
    if any(len(run.table(name)) for name in (*selection.TIMED, "SAMPLES")):
        start, end = selection.extent(run)
        return (start, end) if end > start else ()
    return ()


def last_choice(run: Run) -> dict[str, Any]:
    """Return the last choice of a run; empty if none is stored with every field, no other, and values of its type."""
    content = _stored(run)
    if set(content) != set(FIELDS) or not isinstance(content["kernels"], str):
        return {}
    lists = {name: values for name, values in content.items() if name != "kernels"}
    is_legal = all(
        isinstance(v, list) and all(type(one) is FIELDS[name] for one in v)
        for name, v in lists.items()
    )
    return content if is_legal else {}


def last_lanes(run: Run) -> dict[str, list[str]]:
    """Return how the lanes of a run's timeline were arranged last; empty if nothing is stored that is like it."""
    content = _stored(run, LANES)
    is_like = all(isinstance(v, list) for v in content.values())
    return (
        {name: [str(one) for one in content.get(name, [])] for name in ARRANGED}
        if content and is_like
        else {}
    )


def store(run: Run, content: dict[str, Any], suffix: str = CHOICE) -> None:
    """Store a choice as the last one of a run, or, with LANES, how the lanes of its timeline are arranged.

    The file is whole or absent, and this user's alone; a cache that cannot be written is no error.
    """
    if not (target := _place(run, suffix)):
        return
    with suppress(OSError):
        target.parents[2].mkdir(parents=True, exist_ok=True)
        for folder in (target.parents[1], target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        put(target, json.dumps(content).encode())


def _stored(run: Run, suffix: str = CHOICE) -> dict[str, Any]:
    """Return what was stored of a run; empty where that is nothing, or no object."""
    place = _place(run, suffix)
    try:
        content = json.loads(cache.content(place, LONGEST_CHOICE)) if place else {}
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _place(run: Run, suffix: str) -> Path | None:
    """Return the file of what is stored of a run; None where nothing is stored, or the run lies in no file."""
    paths = [profile.path for profile in run.profiles]
    folder = _own_folder()
    if folder is None or not paths or not all(path.exists() for path in paths):
        return None
    key = json.dumps(sorted(str(path.resolve()) for path in paths))
    return folder / "choices" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}{suffix}"


def _own_folder() -> Path | None:
    """Return this user's folder in the cache; None without a cache, or if someone else made or may write it."""
    root = cache.root()
    if root is None:
        return None
    if sys.platform == "win32":
        return root / f"user-{os.environ.get('USERNAME', 'unnamed')}"
    folder = root / f"user-{os.getuid()}"
    try:
        return (
            folder
            if stat.S_ISDIR((status := folder.lstat()).st_mode) and cache.is_own(status)
            else None
        )
    except OSError:
        return folder  # there is none yet
