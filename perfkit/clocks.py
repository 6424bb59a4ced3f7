"""When was a profile recorded, beside the others of its run?

Conventions
-----------
Captures that were recorded within a minute of each other share a clock, whose zero is the start of the earliest. What
was recorded farther apart shares no moment with them: such a timeline or trace has a clock of its own, so that nobody
takes the time between for idle time. A log without operations stays on the clock of the captures that it meets, else on
the first one.

Functions
---------
zeros      when time 0 of each profile was
shifts     what brings the times of profiles onto the axis of their run
distant    notes on profiles that have clocks of their own
recorded   from when to when a profile was recorded, on that axis
astray     logs of local times that miss the timeline
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

from perfkit.format import duration
from perfkit.profile import Profile

TRACED = {"KERNELS", "COPIES", "API_CALLS", "RANGES", "OPS"}
APART_NS = 60 * 10**9  # between captures that do not share a clock (convention)
LISTED = 3  # names in a note
EVENTS = ("KERNELS", "COPIES", "API_CALLS", "RANGES", "OPS")

QUARTER = 900 * 10**9  # ns
OFFSETS = range(-12 * 4, 14 * 4 + 1)  # of the time zones there are, in quarters of an hour
ZONELESS = "taken as UTC"  # so says a reader's note on a log of local times
RECORD = "record in UTC (`TZ=UTC nvidia-smi ...`)"


def shifts(profiles: Sequence[Profile]) -> list[int]:
    """Return what brings the times of each profile onto the axis of the run, ns; 0 where no wall clock is known."""
    starts_of = zeros(profiles)
    starts = [profile.capture["t0_unix_ns"].iloc[0] for profile in profiles]
    return [0 if pd.isna(start) else int(start) - starts_of[i] for i, start in enumerate(starts)]


def zeros(profiles: Sequence[Profile]) -> dict[int, int]:
    """Return when time 0 of each profile with a wall clock was, ns since 1970, by the profile's position."""
    timed = sorted((i for i, p in enumerate(profiles) if not p.capture["t0_unix_ns"].isna().any()), key=_by(profiles))
    together: list[list[int]] = []
    end = 0
    for i in timed:
        start, stop = _span(profiles[i])
        if together and start <= end + APART_NS:
            together[-1].append(i)
            end = max(end, stop)
        else:
            together.append([i])
            end = stop
    begins = {group[0]: _span(profiles[group[0]])[0] for group in together}
    traced = [group for group in together if any(TRACED & set(profiles[i].loaders) for i in group)]
    first = (traced or together or [[]])[0]
    return {i: begins[group[0] if group in traced else first[0]] for group in together for i in group}


def _by(profiles: Sequence[Profile]) -> Callable[[int], tuple[int, int]]:
    return lambda i: _span(profiles[i])


def distant(profiles: Sequence[Profile]) -> list[str]:
    """Return notes on captures that have a clock of their own, since they were recorded long before or after others."""
    starts_of = zeros(profiles)
    groups: dict[int, list[str]] = {}
    for i, zero in starts_of.items():
        if TRACED & set(profiles[i].loaders):
            groups.setdefault(zero, []).append(profiles[i].path.name)
    first = min(groups, default=0)
    return [
        f"{', '.join(names[:LISTED])}{' and more' if len(names) > LISTED else ''}: recorded {duration(zero - first)} "
        f"after {groups[first][0]}, so on a clock of its own: equal times are not the same moment"
        for zero, names in groups.items()
        if zero != first
    ]


class Recorded(NamedTuple):
    """From when to when a profile was recorded, ns on the axis of the run."""

    name: str
    start_ns: int
    end_ns: int


def recorded(profile: Profile, shift: int, *, events: bool) -> Recorded | None:
    """Return from when to when a profile was recorded; None without any times.

    With `events` those that lie beyond count too, for which its tables are read.
    """
    start, end = 0, int(profile.capture["dur_ns"].iloc[0])
    for name in EVENTS if events else ():
        frame = profile.table(name)
        if frame.empty:
            continue
        start = min(start, int(frame["start_ns"].min()))
        end = max(end, int((frame["start_ns"] + frame["dur_ns"]).max()))
    return Recorded(profile.path.name, start + shift, end + shift) if end > start else None


def astray(profiles: Sequence[Profile]) -> list[str]:
    """Return notes on the logs of local times that miss the timeline, and would meet it if their clock had an offset.

    Nothing is shifted: the log may be of another run.
    """
    spans = [_span(p) for p in profiles if "KERNELS" in p.loaders and not p.capture["t0_unix_ns"].isna().any()]
    notes = []
    for profile in profiles:
        local = any(ZONELESS in note for note in profile.notes) and "KERNELS" not in profile.loaders
        if not spans or not local or profile.capture["t0_unix_ns"].isna().any():
            continue
        start, end = _span(profile)
        met = [n for n in OFFSETS if any(start - n * QUARTER <= e and s <= end - n * QUARTER for s, e in spans)]
        if met and 0 not in met:
            clock = f"at {_zone(met[0])}" if len(met) == 1 else f"between {_zone(met[0])} and {_zone(met[-1])}"
            notes.append(
                f"{profile.path.name}: its times, taken as UTC, miss the timeline; as those of a clock {clock} they "
                f"would meet it. They are left as they are: {RECORD}"
            )
    return notes


def _span(profile: Profile) -> tuple[int, int]:
    """Return when a profile begins and ends, ns since 1970."""
    start = int(profile.capture["t0_unix_ns"].iloc[0])
    return start, start + int(profile.capture["dur_ns"].iloc[0])


def _zone(quarters: int) -> str:
    hours, rest = divmod(abs(quarters), 4)
    return f"UTC{'-' if quarters < 0 else '+'}{hours}:{15 * rest:02d}"
