"""Two runs of any kind, or two groups of repeats, side by side: what they share, what differs, how sure that is.

Conventions
-----------
What both runs recorded is compared, by the analyses of `perfkit.analysis.compare`; what only one has is refused. Runs
on other GPUs, of other profilers or of steps found another way are compared all the same, with a caution that
lowers the confidence (`doubts`). Of three repeats or more each figure has an interval.

Functions
---------
compared     what differs between two runs, or two groups of repeats
attempted    the same, or why there is nothing to compare
against      the same of a choice and an earlier run seen alike, worked out once
earlier      that earlier run
alike        an earlier run as a later one is looked at
overview     what is compared, a row per run
question     what a kind of recording answers
sentence     what a comparison says
side_rows    figures of both runs as text
main_rows    the few of them that tell whether the program got faster
spoken_ratio a ratio with its interval as text
sample_rows  sampled metrics of both runs as text
facts        the figures of the comparison itself
"""

from perfkit.diagnosis.comparison.against import against, earlier
from perfkit.diagnosis.comparison.doubts import STEPS, question
from perfkit.diagnosis.comparison.pairing import Comparison, compared
from perfkit.diagnosis.comparison.sides import Given
from perfkit.diagnosis.comparison.summary import facts
from perfkit.diagnosis.comparison.told import (
    QUESTION,
    alike,
    attempted,
    main_rows,
    overview,
    sample_rows,
    sentence,
    side_rows,
    spoken_ratio,
)

__all__ = [
    "QUESTION",
    "STEPS",
    "Comparison",
    "Given",
    "against",
    "alike",
    "attempted",
    "compared",
    "earlier",
    "facts",
    "main_rows",
    "overview",
    "question",
    "sample_rows",
    "sentence",
    "side_rows",
    "spoken_ratio",
]
