"""Mutated files for every reader of perfkit: a table of what was refused, loaded and found wrong.

Usage, from the root of the repository: ``python -m tests.fuzz [--minutes 30 | --mutants 100000] [--workers 2]
[--family NAME ...] [--keep DIR]``, and ``python -m tests.fuzz --family NAME --number N`` for one mutant alone.
Real captures are taken from the folder that PERFKIT_PROFILES names.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from fuzz import execution, families
from fuzz.execution import Outcome


@dataclass
class Report:
    """Outcomes, counted by family."""

    keep: Path | None = None
    mutants: Counter[str] = field(default_factory=Counter)
    status: Counter[tuple[str, str]] = field(default_factory=Counter)
    oracle: Counter[tuple[str, str]] = field(default_factory=Counter)
    groups: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)
    slowest: Outcome = field(default_factory=lambda: Outcome("none", 0))
    seconds: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome, and keep the first mutant of each group of defects."""
        self.mutants[outcome.family] += 1
        self.seconds[outcome.family] += outcome.seconds
        self.status[outcome.family, outcome.status] += 1
        self.oracle[outcome.family, outcome.oracle] += outcome.status == "loaded"
        self.slowest = max(self.slowest, outcome, key=lambda one: one.seconds)
        for group in outcome.defects:
            examples = self.groups.setdefault((outcome.family, group), [])
            if not examples and outcome.status == "died":
                with tempfile.TemporaryDirectory() as folder:
                    outcome.mutation = execution.make(outcome.family, outcome.number, Path(folder))[2]
            examples.append(outcome)
            if len(examples) == 1 and self.keep and outcome.status != "unmade":
                _keep(outcome, group, self.keep)

    def table(self) -> Iterator[str]:
        """The lines of the table, and those of the groups."""
        columns = ("mutants", "refused", "loaded", "died", "agreed", "noted", "abstained", "groups", "s")
        yield f"{'family':12} " + " ".join(f"{name:>9}" for name in columns)
        for family in [name for name in families.FAMILIES if self.mutants[name]]:
            counts = [self.mutants[family], *(self.status[family, s] for s in columns[1:4])]
            counts += [self.oracle[family, o] for o in columns[4:7]]
            counts += [sum(name == family for name, _ in self.groups), round(self.seconds[family])]
            yield f"{family:12} " + " ".join(f"{count:9,}" for count in counts)
        total = [
            sum(self.mutants.values()),
            *(sum(n for (_, s), n in self.status.items() if s == c) for c in columns[1:4]),
        ]
        total += [sum(n for (_, o), n in self.oracle.items() if o == c) for c in columns[4:7]]
        total += [len(self.groups), round(sum(self.seconds.values()))]
        yield f"{'all':12} " + " ".join(f"{count:9,}" for count in total)
        slow = self.slowest
        yield f"slowest: {slow.seconds:.1f} s of CPU, --family {slow.family} --number {slow.number}"
        yield from (described(family, group, found) for (family, group), found in sorted(self.groups.items()))


def described(family: str, group: str, found: list[Outcome]) -> str:
    """One line on a group of defects, with the command that makes its first mutant again."""
    first = found[0]
    again = f"python -m tests.fuzz --family {family} --number {first.number}"
    last = first.defects[group].strip().splitlines()
    lines = (f"{len(found):6}x {family} {group} [{first.mutation[:70]}]", last[-1][:160] if last else "", again)
    return "\n        ".join(lines)


def _keep(outcome: Outcome, group: str, folder: Path) -> None:
    """Write a mutant and what is wrong with it into a folder of its own."""
    place = folder / re.sub(r"[^\w.*-]+", "_", f"{outcome.family}--{group}")[:120]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    execution.make(outcome.family, outcome.number, place)
    told = f"family {outcome.family} mutant {outcome.number}\n{outcome.mutation}\n{outcome.defects[group]}\n"
    (place / "INFO.txt").write_text(told, encoding="utf-8")


def _whole(outcome: Outcome) -> Iterator[str]:
    """The lines on one mutant."""
    yield f"{outcome.family} {outcome.number} of {outcome.seed}: {outcome.status}, {outcome.mutation}"
    yield outcome.refusal
    for group, detail in outcome.defects.items():
        yield from (group, detail)


def _timed(tasks: Iterable[tuple[str, int]], minutes: float) -> Iterator[tuple[str, int]]:
    end = time.monotonic() + 60 * minutes
    return itertools.takewhile(lambda _: time.monotonic() < end, tasks)


def main() -> int:
    """Run what the command line asks for; return 1 if a defect was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long mutants are made")
    parser.add_argument("--mutants", type=int, help="how many are made, instead of a time")
    parser.add_argument("--workers", type=int, default=1, help="processes that load them")
    parser.add_argument("--family", action="append", choices=list(families.FAMILIES), help="of these families only")
    parser.add_argument("--number", type=int, help="this mutant of a family alone")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant of each family")
    parser.add_argument("--keep", type=Path, help="folder for one example of each group of defects")
    options = parser.parse_args()
    names = options.family or list(families.FAMILIES)
    tasks: Iterable[tuple[str, int]] = execution.tasks(names, options.first)
    if options.number is not None:
        tasks = [(name, options.number) for name in names]
    elif options.mutants:
        tasks = itertools.islice(tasks, options.mutants)
    else:
        tasks = _timed(tasks, options.minutes)
    report, start = Report(options.keep), time.monotonic()
    with execution.Pool(options.workers) as pool:
        for done, outcome in enumerate(pool.outcomes(tasks), 1):
            report.add(outcome)
            if options.number is not None:
                sys.stdout.writelines(f"{line}\n" for line in _whole(outcome))
            elif done % 1000 == 0:
                rate = done / (time.monotonic() - start)
                sys.stderr.write(f"{done:,} mutants, {rate:.0f} a second, {len(report.groups)} groups of defects\n")
    sys.stdout.writelines(f"{line}\n" for line in report.table())
    return 1 if report.groups else 0


if __name__ == "__main__":
    sys.exit(main())
