"""Print how often `perfkit check` passes, fails and cannot tell, by what two runs differ in.

Usage, from the root of the repository: ``python -m tests.pairs [--pairs 10] [--noise 0.005] [--form nvtx] [--keep]
[CASE ...]``. Each line is of so many pairs of runs that `program` draws. CASE is the beginning of a case's name.
`--recorded PROFILES` computes the recorded pairs from their raw data anew; PROFILES is the folder of captures.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from pairs import cases, program, rates, recorded

from perfkit.analysis.compare import NOISE


def main() -> int:
    """Print a line per case, form and noise."""
    parser = argparse.ArgumentParser(prog="python -m tests.pairs")
    parser.add_argument("cases", metavar="CASE", nargs="*", help="beginning of a case's name")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of a line")
    parser.add_argument(
        "--noise", type=float, action="append", help="share by which two runs of one program differ"
    )
    parser.add_argument(
        "--form", choices=program.FORMS, action="append", help="what shows the steps"
    )
    parser.add_argument(
        "--compare", action="store_true", help="count the verdicts of `perfkit compare` instead"
    )
    parser.add_argument("--allowed", type=float, default=NOISE, help="noise in the budget of check")
    parser.add_argument(
        "--keep", action="store_true", help="store the counts, which docs/pipeline.md shows"
    )
    parser.add_argument(
        "--recorded", metavar="PROFILES", type=Path, help="recompute the recorded pairs instead"
    )
    options = parser.parse_args()
    if options.recorded:
        recorded.keep(options.recorded)
        return 0
    begun = time.perf_counter()
    for form in options.form or program.FORMS:
        for noise in options.noise or cases.NOISE:
            for case in cases.CASES:
                if options.cases and not case.name.startswith(tuple(options.cases)):
                    continue
                if options.compare:
                    _print(case, form, noise, _compared(case, form, noise, options.pairs))
                    continue
                counted = rates.rate(case, form, noise, options.pairs, options.allowed)
                answers = {"pass": counted.passed, "FAIL": counted.failed}
                _print(case, form, noise, {**answers, "cannot tell": counted.undecided})
                if options.keep:
                    rates.keep(counted)
    sys.stdout.write(f"{time.perf_counter() - begun:.0f} s\n")
    return 0


def _compared(case: cases.Case, form: str, noise: float, pairs: int) -> Counter[str]:
    """Return how often each verdict of `perfkit compare` came."""
    return Counter(cases.compared(case, form, noise, number) for number in range(pairs))


def _print(case: cases.Case, form: str, noise: float, counts: Mapping[str, int]) -> None:
    told = ", ".join(f"{answer} {count}" for answer, count in counts.items() if count)
    sys.stdout.write(f"{form:10} {100 * noise:3.1f} % {case.name:28} {told}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFKIT_CACHE"] = "off"
        os.chdir(folder)
        sys.exit(main())
