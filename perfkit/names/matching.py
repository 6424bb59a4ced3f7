"""Which names does a pattern choose?

Functions
---------
matching   names that contain a text, or match a pattern
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matching(names: Iterable[str], pattern: str) -> list[bool]:
    """Say of each name whether it contains `pattern`, or matches it where it holds ``*`` or ``?``.

    Upper and lower case are alike.

    Examples
    --------
    >>> matching(["sgemm_tn", "Softmax"], "soft"), matching(["sgemm_tn", "Softmax"], "*GEMM_?n")
    ([False, True], [True, False])
    """
    wanted = pattern.casefold()
    folded = (str(name).casefold() for name in names)
    if any(sign in wanted for sign in "*?"):
        return [fnmatchcase(name, wanted) for name in folded]
    return [wanted in name for name in folded]
