"""What may be chosen of a run: checks that refuse what was not recorded, in a sentence.

Functions
---------
window           a window inside the recording
extent           where the recording starts and ends
uninterrupted    at which times something was recorded
covers           whether something was recorded all the time of a window
check_ranks      ranks that were recorded
check_gpus       GPUs with activity
check_families   families that exist
named            the kernels whose name and family were chosen
no_kernel        the refusal when none is left
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.clocks import Recorded
from perfkit.errors import PerfkitError
from perfkit.names import FAMILIES, family
from perfkit.names.matching import matching
from perfkit.run import Run

TIMED = ("KERNELS", "COPIES", "API_CALLS", "RANGES")
MOST_COMPARED = 500  # names; more would let whoever types wait
ACTIVE = ("KERNELS", "COPIES", "SAMPLES", "LAUNCHES")
SPANS = 4  # captures whose times a message lists


def extent(run: Run) -> tuple[int, int]:
    """Return the start and end of what was recorded, ns: from time 0 or the first event to the last or the end."""
    starts, ends = [span.start_ns for span in run.recorded], [span.end_ns for span in run.recorded]
    return min([0, *starts]), max([0, *ends])


def uninterrupted(spans: Iterable[Recorded]) -> list[tuple[int, int]]:
    """Return the times at which something was recorded: spans that meet or overlap are one.

    Examples
    --------
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


def window(run: Run, window: Sequence[int]) -> tuple[int, int] | None:
    """Return the window as two integers, None for all; refuse one that reaches beyond the recording."""
    if not len(window):
        return None
    if len(window) != 2 or window[1] <= window[0]:
        raise PerfkitError(f"window: {list(window)} is not a start and a later end in ns. Give both, start first.")
    first, last = int(window[0]), int(window[1])
    if len(run.calltree) and all(run.table(name).empty for name in (*TIMED, "SAMPLES")):
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
    if not covers(run.recorded, (first, last)):
        spans = ", ".join(
            f"{s.start_ns / 1e9:.9g} s to {s.end_ns / 1e9:.9g} s ({s.name})" for s in run.recorded[:SPANS]
        )
        raise PerfkitError(
            f"window: {first / 1e9:.9g} s to {last / 1e9:.9g} s reaches into a time at which nothing was recorded. "
            f"Recorded was {spans}{' and more' if len(run.recorded) > SPANS else ''}. Choose a window inside of one."
        )
    return first, last


def check_families(families: Sequence[str]) -> None:
    """Refuse families that do not exist."""
    unknown = [one for one in families if one not in FAMILIES]
    if unknown:
        raise PerfkitError(f"families: {', '.join(map(repr, unknown))} is unknown. Choose from {', '.join(FAMILIES)}.")


def check_ranks(run: Run, ranks: Sequence[int]) -> None:
    """Refuse ranks of which nothing was recorded."""
    if not len(ranks):
        return
    known = {int(rank) for name in ("CAPTURE", *ACTIVE) for rank in run.table(name)["rank"].unique()}
    unknown = [rank for rank in ranks if rank not in known]
    if unknown:
        missing, found = (", ".join(map(str, ranks)) for ranks in (unknown, sorted(known)))
        raise PerfkitError(f"ranks: the run has no rank {missing}. Choose from {found}.")


def check_gpus(run: Run, gpus: Sequence[int], ranks: Sequence[int] = ()) -> None:
    """Refuse GPUs without activity on the chosen ranks."""
    frames = [run.table(name) for name in ACTIVE]
    seen = [frame[frame["rank"].isin(ranks)] if ranks else frame for frame in frames]
    known = sorted({int(g) for frame in seen for g in frame["gpu"].unique()})
    unknown = [g for g in gpus if g not in known]
    if unknown:
        raise PerfkitError(
            f"gpus: the run has no activity on GPU {', '.join(map(str, unknown))}. "
            + (f"Choose from {', '.join(map(str, known))}." if known else "It has no GPU activity at all.")
        )


def no_kernel(run: Run, pattern: str, families: Sequence[str]) -> PerfkitError:
    """Return the refusal of a choice that no kernel meets, with what could be chosen."""
    frames = (run.kernels, run.launches)
    names = [str(name) for frame in frames for name in frame["name"].cat.categories]
    if not names:
        return PerfkitError("kernels: the run has no kernels. Choose no kernels, or record some.")
    if families:
        present = {family(str(name)) for frame in frames for name in frame["full_name"].cat.categories}
        found = ", ".join(one for one in FAMILIES if one in present)
        named = f" and contains {pattern!r}" if pattern else ""
        return PerfkitError(f"families: no kernel is of {', '.join(families)}{named}. The run has {found}.")
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
        chosen &= _matches(frame["name"], pattern) | _matches(frame["full_name"], pattern)
    if families and "family" in frame:
        chosen &= frame["family"].isin(families).to_numpy()
    elif families:
        chosen &= _spread(frame["full_name"], [family(name) in families for name in _texts(frame["full_name"])])
    return pd.Series(chosen, frame.index)


def _texts(names: pd.Series) -> list[str]:
    return [str(name) for name in names.cat.categories]


def _matches(names: pd.Series, pattern: str) -> NDArray[np.bool_]:
    """Say which rows' name matches; each distinct name is looked at once."""
    return _spread(names, matching(_texts(names), pattern))


def _spread(names: pd.Series, hits: list[bool]) -> NDArray[np.bool_]:
    """Return for each row what was found of its name; a missing name is no hit."""
    return np.array([*hits, False], bool)[names.cat.codes.to_numpy()]
