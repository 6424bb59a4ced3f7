"""How often each answer of `perfkit check` came, kept in `rates.csv` and shown in `docs/pairs.md`."""

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from pairs import cases
from pairs.program import FORMS

FILE = Path(__file__).with_name("rates.csv")
STEPS_FROM = {"nvtx": "NVTX ranges", "sequence": "kernel sequences", "irregular": "no steps"}
USUAL = 1.96 * 2**0.5  # of a standard deviation: by at most so much 95 of 100 pairs differ
MARKS = {0: "pass", 1: "fail", 2: "cannot tell"}
HEAD = (
    "What differs",
    "Steps from",
    "Noise",
    "Allowed",
    "Pairs",
    "Pass",
    "Fail",
    "Cannot tell",
    "Right",
)


@dataclass(frozen=True, order=True)
class Rate:
    """The answers to the pairs of one case, form and noise.

    `noise` is the standard deviation of the speed of a run, `allowed` the noise in the budget of `perfkit check`.
    """

    case: str
    form: str
    noise: float
    allowed: float
    passed: int
    failed: int
    undecided: int

    @property
    def pairs(self) -> int:
        """The number of pairs."""
        return self.passed + self.failed + self.undecided

    @property
    def is_allowed(self) -> bool:
        """Whether the budget allows what 95 of 100 pairs of equal runs differ by."""
        return self.allowed >= USUAL * self.noise

    def count(self, statuses: Iterable[int]) -> int:
        """Return how many pairs got one of these exit statuses."""
        counts = {0: self.passed, 1: self.failed, 2: self.undecided}
        return sum(counts[status] for status in statuses)


def rate(case: cases.Case, form: str, noise: float, pairs: int, allowed: float) -> Rate:
    """Draw pairs and count the answers."""
    numbers = range(pairs)
    counts = Counter(cases.quickly_checked(case, form, noise, n, allowed) for n in numbers)
    return Rate(case.name, form, noise, allowed, counts[0], counts[1], counts[2])


def read() -> list[Rate]:
    """Return the stored rates, in the order of the cases, forms and noises."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rates = [
        Rate(
            row["case"],
            row["form"],
            float(row["noise"]),
            float(row["allowed"]),
            int(row["passed"]),
            int(row["failed"]),
            int(row["undecided"]),
        )
        for row in rows
    ]
    return sorted(rates, key=_order)


def _order(one: Rate) -> tuple[int, int, float, float]:
    names = [case.name for case in cases.CASES]
    return names.index(one.case), FORMS.index(one.form), one.noise, one.allowed


def keep(new: Rate) -> None:
    """Store a rate in the place of an earlier one of the same case, form and noise."""
    stored = {_order(one): one for one in (read() if FILE.exists() else [])}
    stored[_order(new)] = new
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Rate))
        writer.writerows(astuple(one) for one in sorted(stored.values(), key=_order))


def table() -> str:
    """Return the stored rates as a table in Markdown."""
    right = {case.name: case.right for case in cases.CASES}
    lines = [HEAD, ("---",) * len(HEAD)]
    for one in read():
        answers = " or ".join(MARKS[status] for status in right[one.case])
        kept = one.count(right[one.case])
        lines.append(
            (
                one.case,
                STEPS_FROM[one.form],
                f"{100 * one.noise:.1f} %",
                f"{100 * one.allowed:.1f} %",
                f"{one.pairs}",
                f"{one.passed}",
                f"{one.failed}",
                f"{one.undecided}",
                f"{kept} of {one.pairs} ({answers})",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
