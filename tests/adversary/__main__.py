"""Score what perfkit tells of the adversary's cases.

Usage, from the root of the repository: ``python -m tests.adversary [--seeds 10] [--cases PATTERN] [--all]``.
"""

import argparse
import fnmatch
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from adversary.cases import CASES, Plan, plan

import perfkit
from perfkit import diagnosis

SLACK = 0.03  # of a gain: what the randomness of two runs may differ by
ONCE = {"warm_up"}  # mending it makes the figures true, not the program faster: it claims no gain


@dataclass
class Score:
    """What was told of one run, and whether it was right; None where a question does not arise."""

    name: str
    seed: int
    plan: Plan
    told: list
    wrong: list[str]
    first: bool | None = None
    truth: float | None = None
    holds: bool | None = None
    quiet: bool | None = None

    def right(self) -> bool:
        return not self.wrong and False not in (self.first, self.holds, self.quiet)


def score(name: str, seed: int, folder: Path) -> Score:
    """Run a case and judge what perfkit tells of it."""
    made = plan(name, seed)
    found = diagnosis.findings(perfkit.load(made.write(made.program.run(), folder)))
    names = set().union(made.also, *(cause.names for cause in made.causes))
    strong = [item for item in found if (item.severity, item.confidence) == ("high", "high")]
    wrong = [item.rule for item in strong if item.rule not in names]
    one = Score(name, seed, made, found, wrong)
    if made.quiet:
        one.quiet = all(item.rule in made.also for item in found if item.severity != "low")
    elif made.causes:
        meant = [cause for cause in made.first() if found and found[0].rule in cause.names]
        one.first, one.truth = bool(meant), made.gain(meant[0] if meant else made.causes[0])
        if meant and found[0].rule not in ONCE:
            gain = found[0].gain
            one.holds = gain.low * (1 - SLACK) <= one.truth <= gain.high * (1 + SLACK)
    return one


def _range(item: object) -> str:
    high = f"{item.gain.high:.2f}" if math.isfinite(item.gain.high) else "no limit"
    return f"{item.rule} ({item.severity}, {item.confidence}, {item.gain.low:.2f} to {high})"


def _rate(values: list[bool | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known)} of {len(known)}" + (f" ({sum(known) / len(known):.0%})" if known else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cases", default="*")
    parser.add_argument("--all", action="store_true", help="print every finding")
    options = parser.parse_args()
    scores: list[Score] = []
    words = {True: "yes", False: "NO", None: "-"}
    for name in fnmatch.filter(CASES, options.cases):
        for seed in range(options.first, options.first + options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                scores.append(one := score(name, seed, Path(folder)))
            planted = " > ".join(cause.words for cause in one.plan.causes) or f"nothing: {one.plan.quiet}"
            first = _range(one.told[0]) if one.told else "nothing"
            truth = f"{one.truth:.2f}" if one.truth else "-"
            right = one.first if one.quiet is None else one.quiet
            print(f"{name} {seed} | {planted} | {first} | right {words[right]} | wrong {', '.join(one.wrong) or '-'} "  # noqa: T201
                  f"| truth {truth} in range {words[one.holds]}")  # fmt: skip
            for item in one.told if options.all else ():
                print(f"      {_range(item)}: {item.title}")  # noqa: T201
    print("planted first:", _rate([one.first for one in scores]))  # noqa: T201
    print("nothing wrong at high severity and high confidence:", _rate([not one.wrong for one in scores]))  # noqa: T201
    print("the range of the gain holds the truth:", _rate([one.holds for one in scores]))  # noqa: T201
    print("healthy runs quiet:", _rate([one.quiet for one in scores]))  # noqa: T201


if __name__ == "__main__":
    main()
