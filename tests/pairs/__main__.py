"""Print how often `perfkit check` passes, fails and cannot tell, by what two runs differ in.

Usage, from the root of the repository: ``python -m tests.pairs [--pairs 10] [--noise 0.005] [--form nvtx] [CASE ...]``.
Each line is of so many pairs of runs that `program` draws. CASE is the beginning of a case's name.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from pairs import cases, program

PASS, FAIL, CANNOT_TELL = 0, 1, 2


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
    options = parser.parse_args()
    judge = cases.compared if options.compare else cases.checked
    begun = time.perf_counter()
    for form in options.form or program.FORMS:
        for noise in options.noise or cases.NOISE:
            for case in cases.CASES:
                if not options.cases or case.name.startswith(tuple(options.cases)):
                    counts = Counter(
                        judge(case, form, noise, number) for number in range(options.pairs)
                    )
                    _print(case, form, noise, counts)
    sys.stdout.write(f"{time.perf_counter() - begun:.0f} s\n")
    return 0


def _print(case: cases.Case, form: str, noise: float, counts: Counter[object]) -> None:
    told = ", ".join(
        f"{cases.WORDS.get(answer, answer)} {count}"
        for answer, count in sorted(counts.items(), key=str)
    )
    sys.stdout.write(f"{form:10} {100 * noise:3.1f} % {case.name:28} {told}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFKIT_CACHE"] = "off"
        os.chdir(folder)
        sys.exit(main())
