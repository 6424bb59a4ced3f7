"""Notes on a run: which ranks are missing, which logs miss the timeline, and each note once for all its files."""

import re
from collections.abc import Iterable, Sequence

from perfkit.discovery import Place
from perfkit.format import percent
from perfkit.job import Job
from perfkit.profile import Profile

LISTED = 3  # runs of ranks, and files, in a note
ALONE = 16  # files left out of a run, each with a note of its own; each may have a reason of its own
QUARTER = 900 * 10**9  # ns
OFFSETS = range(-12 * 4, 14 * 4 + 1)  # of the time zones there are, in quarters of an hour
ZONELESS = "taken as UTC"  # so says a reader's note on a log of local times
RECORD = "record in UTC (`TZ=UTC nvidia-smi ...`)"


def absent(profiles: Sequence[Profile], placed: Sequence[Place], job: Job) -> list[str]:
    """Return a note on the ranks without a file and their share of the GPUs; none if every rank has one.

    The files state the world size, or else the user does (`Job.world_size`). The ranks must be stated too: numbers that
    follow from the order of the names do not tell which ranks are missing.
    """
    stating = [
        (profile, place.first) for profile, place in zip(profiles, placed, strict=True) if profile.rank is not None
    ]
    size = max((profile.world_size or 0 for profile, _ in stating), default=0)
    who = "the files state" if size else "you gave"
    size = size or job.world_size
    present = sorted({rank for _, rank in stating if rank < size})
    if not present or len(present) == size:
        return []
    gaps = [(low + 1, high - 1) for low, high in zip([-1, *present], [*present, size], strict=False) if high - low > 1]
    missing = size - len(present)
    share = f"{missing:,} of {size:,} GPUs ({percent(missing / size)})"
    ranks = f"rank{'s' * (missing > 1)} {_listed(gaps)}"
    return [
        f"{ranks} {'are' if missing > 1 else 'is'} missing: {who} a world size of {size:,}, and {share} have no file"
    ]


def _listed(gaps: Sequence[tuple[int, int]]) -> str:
    """Return runs of ranks in words, the first few by their numbers.

    >>> _listed([(3, 3), (5, 9)]), _listed([(1, 2), (4, 4), (6, 6), (8, 30)])
    ('3 and 5 to 9', '1 to 2, 4, 6 and 23 more')
    """
    words = [f"{low}" if low == high else f"{low} to {high}" for low, high in gaps[:LISTED]]
    if more := sum(high - low + 1 for low, high in gaps[LISTED:]):
        words.append(f"{more:,} more")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def once(notes: Iterable[str], most: int = LISTED) -> list[str]:
    """Return notes that begin with the name of a file, one for all files if more than `most` share it.

    Two notes are the same if they differ in numbers only; the numbers are then those of the first file.

    >>> once([f"rank{i}: {i + 1} events are left out" for i in range(1000)])
    ['rank0 and 999 more files: 1 events are left out (numbers of the first file)']
    """
    alike: dict[str, list[tuple[str, str]]] = {}
    for note in notes:
        name, _, text = note.partition(": ")
        alike.setdefault(re.sub(r"\d+", "#", text.replace(name, "")) or note, []).append((name, note))
    shown = []
    for same in alike.values():
        (name, first), texts = same[0], {note.partition(": ")[2] for _, note in same}
        if len(same) <= most:
            shown += [note for _, note in same]
        else:
            numbers = " (numbers of the first file)" if len(texts) > 1 else ""
            shown.append(f"{name} and {len(same) - 1:,} more files: {first.partition(': ')[2]}{numbers}")
    return shown


def astray(profiles: Sequence[Profile]) -> list[str]:
    """Return notes on logs of local times that would meet the timeline with a clock's offset; nothing is shifted."""
    spans = [p.span for p in profiles if "KERNELS" in p.loaders and p.span]
    notes = []
    for profile in profiles:
        local = any(ZONELESS in note for note in profile.notes) and "KERNELS" not in profile.loaders
        if not spans or not local or not profile.span:
            continue
        start, end = profile.span
        met = [n for n in OFFSETS if any(start - n * QUARTER <= e and s <= end - n * QUARTER for s, e in spans)]
        if met and 0 not in met:
            clock = f"at {_zone(met[0])}" if len(met) == 1 else f"between {_zone(met[0])} and {_zone(met[-1])}"
            notes.append(
                f"{profile.path.name}: its times, taken as UTC, miss the timeline; as those of a clock {clock} they "
                f"would meet it. They are left as they are: {RECORD}"
            )
    return notes


def _zone(quarters: int) -> str:
    hours, rest = divmod(abs(quarters), 4)
    return f"UTC{'-' if quarters < 0 else '+'}{hours}:{15 * rest:02d}"
