"""When was a profile recorded, beside the others of its run?

Functions
---------
shift      what brings the times of a profile onto the axis of the run
recorded   from when to when a profile was recorded, on that axis
apart      profiles that were recorded while no other one was
astray     logs of local times that miss the timeline
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from perfkit.profile import Profile

EVENTS = ("KERNELS", "COPIES", "API_CALLS", "RANGES", "OPS", "SAMPLES")

QUARTER = 900 * 10**9  # ns
OFFSETS = range(-12 * 4, 14 * 4 + 1)  # of the time zones there are, in quarters of an hour
ZONELESS = "taken as UTC"  # so says a reader's note on a log of local times
RECORD = "record in UTC (`TZ=UTC nvidia-smi ...`, or `perfkit record monitor`)"


def shift(profile: Profile, profiles: Sequence[Profile]) -> int:
    """Return what brings the profile's times onto the axis of the earliest one, ns."""
    starts = [p.capture["t0_unix_ns"].iloc[0] for p in profiles]
    own = profile.capture["t0_unix_ns"].iloc[0]
    return 0 if pd.isna(own) else int(own) - int(min(s for s in starts if not pd.isna(s)))


class Recorded(NamedTuple):
    """From when to when a profile was recorded, ns on the axis of the run."""

    name: str
    start_ns: int
    end_ns: int


def recorded(profile: Profile, profiles: Sequence[Profile]) -> Recorded | None:
    """Return from when to when a profile was recorded, its events that lie beyond included; None without any times."""
    by = shift(profile, profiles)
    start, end = 0, int(profile.capture["dur_ns"].iloc[0])
    for name in EVENTS:
        frame = profile.table(name)
        if frame.empty:
            continue
        if "time_ns" in frame:
            first, last = int(frame["time_ns"].min()), int(frame["time_ns"].max())
        else:
            first, last = int(frame["start_ns"].min()), int((frame["start_ns"] + frame["dur_ns"]).max())
        start, end = min(start, first), max(end, last)
    return Recorded(profile.path.name, start + by, end + by) if end > start else None


def apart(profiles: Sequence[Profile], others: Sequence[Profile]) -> bool:
    """Tell whether the captures of `profiles` lie outside of those of all `others`, by their clocks and lengths."""
    spans, beside = (
        [_span(p) for p in each if not p.capture["t0_unix_ns"].isna().any() and p.capture["dur_ns"].iloc[0]]
        for each in (profiles, others)
    )
    return bool(spans) and bool(beside) and not any(s <= end and start <= e for start, end in spans for s, e in beside)


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
