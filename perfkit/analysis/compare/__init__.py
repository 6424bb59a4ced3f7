"""Is the run after a change faster than the one before, where did the time move, and is the difference one?

Conventions
-----------
A difference is after less before, a ratio after over before: below 1 is faster. A ratio of step or family times has
a confidence interval, resampled from the steps of a run, in blocks because neighbours are alike, or from three
repeats or more. A verdict needs the whole interval to lie further from 1 than what matters, 1 % by default, since
runs of one program differ by as much, which no single one shows. Values without an interval differ from 5 % on, and
are then changed, not better or worse.
Kernel times are per step wherever kernels carry a step (`in_steps`): runs are recorded for different lengths.

Functions
---------
steps       the step times of two runs, or of two groups of repeats
ledger      the step times of a series of runs, one change at a time
in_steps    the kernels of the steady steps, each with its step
in_parts    the parts of each steady step: computing, communication, copies, idleness
parts       the parts of the steps' time
families    kernel time per step of each family
kernels     the kernels of two timelines: changed, same, new, gone
launches    the same, of two reports of counters
paths       a metric of each call path, in two call-path profiles
samples     the mean of each sampled metric, in two logs
figures     named figures side by side, each with a verdict
direction   which way a named figure is better
"""

from perfkit.analysis.compare.call_paths import COMPARED_SAMPLES, PATHS, paths, samples
from perfkit.analysis.compare.matched import kernels, launches
from perfkit.analysis.compare.moved import FAMILIES, families, in_steps
from perfkit.analysis.compare.named import COMPARED_FIGURES, FIGURES, figures
from perfkit.analysis.compare.parted import PARTS, STEP_PARTS, in_parts, parts
from perfkit.analysis.compare.resampling import FEWEST
from perfkit.analysis.compare.stepping import COMPARED_STEPS, LEDGER, ledger, steps
from perfkit.analysis.compare.verdicts import MATTERS, TOLERANCE, VERDICTS, direction, of_interval, of_values

__all__ = [
    "COMPARED_FIGURES",
    "COMPARED_SAMPLES",
    "COMPARED_STEPS",
    "FAMILIES",
    "FEWEST",
    "FIGURES",
    "LEDGER",
    "MATTERS",
    "PARTS",
    "PATHS",
    "STEP_PARTS",
    "TOLERANCE",
    "VERDICTS",
    "direction",
    "families",
    "figures",
    "in_parts",
    "in_steps",
    "kernels",
    "launches",
    "ledger",
    "of_interval",
    "of_values",
    "parts",
    "paths",
    "samples",
    "steps",
]
