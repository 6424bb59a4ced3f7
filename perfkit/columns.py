"""Columns that many tables share, and how to make those of times and of texts that repeat."""

from perfkit.schema import Column

# No capture lasts longer, and nothing in it begins earlier or ends later: ten years, ns.
LONGEST_NS = 315_576_000 * 10**9
LATEST_UNIX_NS = 4_102_444_800 * 10**9  # the year 2100


def moment(name: str, meaning: str) -> Column:
    """Return a column of times within a recording, ns."""
    return Column(name, "int64", meaning, -LONGEST_NS, LONGEST_NS)


def duration(meaning: str) -> Column:
    """Return a column of durations, ns."""
    return Column("dur_ns", "int64", meaning, 0, LONGEST_NS)


def category(name: str, meaning: str) -> Column:
    """Return a column of texts that repeat."""
    return Column(name, "category", meaning)


RANK = Column("rank", "int32", "rank of the process group, or position of the file in its folder")
GPU = Column(
    "gpu",
    "int32",
    "CUDA device ordinal on the node of that rank; -1 unknown",
    least=-1,
    fallback=-1,
)
