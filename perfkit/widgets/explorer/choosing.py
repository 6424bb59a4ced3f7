"""The explorer itself: choices that code and controls set alike, and the part of the run that they leave.

Conventions
-----------
A choice that does not fit the run is a TraitError with what can be chosen. Choices that each fit, and together leave
nothing, are no error: `selection` is then None and `problem` a sentence.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import traitlets

from perfkit import choice
from perfkit.analysis import steps
from perfkit.errors import PerfkitError
from perfkit.format import printable
from perfkit.run import Run
from perfkit.selection import Selection, select
from perfkit.widgets.explorer import storage
from perfkit.widgets.explorer.offer import Offer, lanes_of
from perfkit.widgets.explorer.storage import CHOICES

LONGEST = 120  # characters of a pattern in a sentence
LAST = 2**63 - 1  # ns that a table can hold


class Explorer(traitlets.HasTraits):
    """A choice of a run that can be changed; `view` are the controls, and below them the view of the choice.

    `ranks`, `gpus`, `window`, `kernels` and `families` are what `perfkit.select` takes, and can be set. Observe
    `selection`, the Selection of the present choice or None, and `problem`, the sentence why there is none: both
    change once per choice. `lanes` are the run's operations, sorted; `totals` is the time per kernel name of the
    choice, as `Lanes.totals` returns it. `last` is the last choice of this run in an earlier session, in the form of
    `parameters`, and empty if it is the one that was given: it is offered, never taken. `files` are the paths beside
    the run that a report of it is given, by the name of the notebooks' parameter.
    """

    ranks: Any = traitlets.Tuple()
    gpus: Any = traitlets.Tuple()
    window: Any = traitlets.Tuple()
    kernels = traitlets.Unicode("")
    families: Any = traitlets.Tuple()
    selection: Any = traitlets.Any()
    problem = traitlets.Unicode("")

    def __init__(
        self, source: Run | Selection, *, show: str = "timeline", baseline: str | Path = "", peaks: str | Path = ""
    ) -> None:
        super().__init__()
        given = {"baseline": baseline, "peaks": peaks}
        self.files = {name: str(Path(path).resolve()) for name, path in given.items() if path}
        start = source if isinstance(source, Selection) else select(source)
        self.run = start.run
        self.lanes = lanes_of(self.run)
        self.offer = Offer(self.run, self.lanes)
        self.totals = self.lanes.totals()
        self.last: dict[str, Any] = {}
        self._begin(start)
        self.observe(self._changed, CHOICES)
        self.view = self._page(show)

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
        return steps.detect(self.run.ranges, self.run.kernels)

    @property
    def on_lanes(self) -> dict[str, Any] | None:
        """Ranks, GPUs and names of the choice as `Lanes` takes them; None if it leaves no device with operations."""
        devices = self.lanes.devices
        ranks, gpus = (
            tuple(x for x in chosen if x in {*known})
            for chosen, known in ((self.ranks, devices["rank"]), (self.gpus, devices["gpu"]))
        )
        if devices.empty or (self.ranks and not ranks) or (self.gpus and not gpus):
            return None
        names = self.lanes.matching(self.kernels, self.families) if self.kernels or self.families else None
        return {"ranks": ranks, "gpus": gpus, "names": names}

    def choose(self, **choices: Any) -> None:
        """Set several choices at once, or none of them.

        Raises
        ------
        TraitError
            If one of them does not fit the run.
        """
        with self.hold_trait_notifications():
            for name, value in choices.items():
                self.set_trait(name, value)

    def reset(self) -> None:
        """Choose everything."""
        self.choose(ranks=(), gpus=(), window=(), kernels="", families=())

    def jump(self, step: int) -> None:
        """Set the window to a step, on all ranks that are chosen and have it.

        Raises
        ------
        ValueError
            If there is no such step.
        """
        there = self.steps[self.steps["rank"].isin(self.ranks)] if self.ranks else self.steps
        found = there[there["step"] == step]
        if found.empty:
            known = f"0 to {there['step'].max()}" if len(there) else "none: nothing repeats"
            raise ValueError(f"step: {step} is not among the steps that were found ({known})")
        self.window = int(found["start_ns"].min()), int((found["start_ns"] + found["dur_ns"]).max())

    @traitlets.validate("ranks", "gpus", "families")
    def _listed(self, proposal: Any) -> tuple[Any, ...]:
        name, legal = proposal["trait"].name, getattr(self.offer, proposal["trait"].name)
        chosen = tuple(dict.fromkeys(proposal["value"]))
        unknown = [one for one in chosen if isinstance(one, bool) or one not in legal]
        if unknown:
            found = ", ".join(map(str, legal)) or "nothing: the run has none"
            listed = printable(", ".join(map(repr, unknown)), LONGEST)
            raise traitlets.TraitError(f"{name}: the run does not have {listed}. Choose from {found}.")
        return tuple(sorted(chosen, key=legal.index) if name == "families" else map(int, chosen))

    @traitlets.validate("window")
    def _inside(self, proposal: Any) -> tuple[int, ...]:
        window = _whole(proposal["value"])
        span = self.offer.span
        # Every choice asks: what lies between operations needs no look at the rest of the recording.
        is_inside = len(window) == 2 and span and span[0] <= window[0] < window[1] <= span[1]
        if is_inside and len(choice.uninterrupted(self.run.captured)) < 2:
            return window
        try:
            return choice.window(self.run, window) or ()
        except PerfkitError as e:
            raise traitlets.TraitError(str(e)) from e

    def _begin(self, start: Selection) -> None:
        """Take the choice that was given. The last one of an earlier session is offered if it leaves something."""
        given = {"ranks": start.ranks, "gpus": start.gpus, "window": start.window or (), "kernels": start.pattern}
        stored = storage.last_choice(self.run)
        with suppress(traitlets.TraitError, PerfkitError):
            self.choose(**stored)
            self._found()
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
            storage.store_choice(self.run, self.parameters)

    def _settle(self) -> None:
        """Look up what the choice leaves."""
        self._settled = self.parameters
        try:
            found, why = self._found(), ""
        except PerfkitError as e:
            found, why = None, str(e)
        with self.hold_trait_notifications():
            self.selection, self.problem = found, why

    def _found(self) -> Selection:
        """Return the Selection; its tables are filtered when a view asks for them."""
        places = self.offer.places
        if self.ranks and any(all((rank, gpu) not in places for rank in self.ranks) for gpu in self.gpus):
            choice.check_gpus(self.run, self.gpus, self.ranks)
        window: tuple[int, int] | None = self.window or None
        found = Selection(self.run, self.ranks, self.gpus, window, self.kernels, self.families)
        self.totals = self._totals(window)
        has_kernels = bool(len(self.run.kernels))
        if found.filtered and self.totals.empty and ((window and has_kernels) or found.launches.empty):
            raise self._nothing(found)
        return found

    def _totals(self, window: tuple[int, int] | None) -> pd.DataFrame:
        asked = self.on_lanes
        return self.totals.iloc[:0] if asked is None else self.lanes.totals(window=window, **asked)

    def _nothing(self, found: Selection) -> PerfkitError:
        """Return the refusal of a name or family that has no kernel: in the run, or in what else is chosen."""
        if not self.lanes.matching(self.kernels, self.families).any():
            return choice.no_kernel(self.run, self.kernels, self.families)
        return PerfkitError(
            f"kernels: nothing ran of {printable(found.description, 4 * LONGEST)}. "
            "Choose a longer window, other GPUs, or other kernels."
        )

    def _page(self, show: str) -> Any:
        from perfkit.widgets.explorer.page import page

        return page(self, show)


def _whole(edges: Sequence[Any]) -> tuple[int, ...]:
    """Return times in ns as integers; one that is no whole number is refused."""
    try:
        whole = tuple(int(edge) if edge == int(edge) else operator.index(edge) for edge in edges)
        if any(abs(edge) > LAST for edge in whole):
            raise OverflowError
    except (TypeError, ValueError, OverflowError) as e:
        listed = printable(list(edges), LONGEST)
        raise traitlets.TraitError(f"window: {listed} is not a start and an end in whole ns. Give both.") from e
    return whole
