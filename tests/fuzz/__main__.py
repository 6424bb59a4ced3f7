"""Mutated files for every reader of perfkit: a table of what was refused, loaded and found wrong.

Usage, from the root of the repository: ``python -m tests.fuzz [--minutes 30 | --mutants 100000] [--workers 2]
[--family NAME ...] [--keep DIR]``, and ``python -m tests.fuzz --family NAME --number N`` for one mutant alone.
Real captures are taken from the folder that PERFKIT_PROFILES names.
"""

import argparse
import itertools
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from fuzz import execution, families
from fuzz.execution import Outcome

COLUMNS = ("mutants", "refused", "loaded", "died", "agreed", "noted", "abstained", "groups", "s")
Groups = dict[tuple[str, str], list[Outcome]]


def table(rows: list[tuple[str, str, str, float]], groups: Groups) -> str:
    """Outcomes by family: what became of the mutants, what the oracle said of those that loaded, groups of defects."""
    frame = pd.DataFrame(rows, columns=["family", "status", "oracle", "s"])
    loaded = frame[frame["status"] == "loaded"]
    counts = [
        pd.crosstab(frame["family"], frame["status"]),
        pd.crosstab(loaded["family"], loaded["oracle"]),
    ]
    by = frame.groupby("family")["s"].agg(mutants="size", s="sum").join(counts)
    by["groups"] = pd.Series([name for name, _ in groups], dtype=object).value_counts()
    by = by.reindex(columns=COLUMNS).fillna(0)
    return pd.concat([by, by.sum().to_frame("all").T]).round().astype("int64").to_string()


def described(family: str, group: str, found: list[Outcome]) -> str:
    """One line on a group of defects, with the command that makes its first mutant again."""
    first = found[0]
    again = f"python -m tests.fuzz --family {family} --number {first.number}"
    last = first.defects[group].strip().splitlines()
    lines = (
        f"{len(found):6}x {family} {group} [{first.mutation[:70]}]",
        last[-1][:160] if last else "",
        again,
    )
    return "\n        ".join(lines)


def _keep(outcome: Outcome, group: str, folder: Path) -> None:
    place = folder / re.sub(r"[^\w.*-]+", "_", f"{outcome.family}--{group}")[:120]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    execution.make(outcome.family, outcome.number, place)
    told = f"family {outcome.family} mutant {outcome.number}\n{outcome.mutation}\n{outcome.defects[group]}\n"
    (place / "INFO.txt").write_text(told, encoding="utf-8")


def main() -> int:
    """Run what the command line asks for; return 1 if a defect was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long mutants are made")
    parser.add_argument("--mutants", type=int, help="how many are made, instead of a time")
    parser.add_argument("--workers", type=int, default=1, help="processes that load them")
    parser.add_argument(
        "--family", action="append", choices=list(families.FAMILIES), help="of these families only"
    )
    parser.add_argument("--number", type=int, help="this mutant of a family alone")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first mutant of each family"
    )
    parser.add_argument("--keep", type=Path, help="folder for one example of each group of defects")
    options = parser.parse_args()
    names = options.family or list(families.FAMILIES)
    tasks: Iterable[tuple[str, int]] = execution.tasks(names, options.first)
    start = time.monotonic()
    if options.number is not None:
        tasks = [(name, options.number) for name in names]
    elif options.mutants:
        tasks = itertools.islice(tasks, options.mutants)
    else:
        tasks = itertools.takewhile(
            lambda _: time.monotonic() < start + 60 * options.minutes, tasks
        )
    rows, groups, slowest = [], Groups(), Outcome("none", 0)
    with execution.Pool(options.workers) as pool:
        for done, outcome in enumerate(pool.outcomes(tasks), 1):
            rows.append((outcome.family, outcome.status, outcome.oracle, outcome.seconds))
            slowest = max(slowest, outcome, key=lambda one: one.seconds)
            for group in outcome.defects:
                examples = groups.setdefault((outcome.family, group), [])
                if not examples and outcome.status == "died":
                    with tempfile.TemporaryDirectory() as folder:
                        outcome.mutation = execution.make(
                            outcome.family, outcome.number, Path(folder)
                        )[2]
                if not examples and options.keep and outcome.status != "unmade":
                    _keep(outcome, group, options.keep)
                examples.append(outcome)
                if len(examples) == 1:  # told at once: a long run may be stopped
                    sys.stderr.write(f"{described(outcome.family, group, examples)}\n")
            if options.number is not None:
                said = f"{outcome.family} {outcome.number} of {outcome.seed}: {outcome.status}, {outcome.mutation}"
                sys.stdout.write(
                    "\n".join(
                        [said, outcome.refusal, *itertools.chain(*outcome.defects.items()), ""]
                    )
                )
            elif done % 1000 == 0:
                rate = done / (time.monotonic() - start)
                sys.stderr.write(
                    f"{done:,} mutants, {rate:.0f} a second, {len(groups)} groups of defects\n"
                )
    sys.stdout.write(f"{table(rows, groups)}\nslowest: {slowest.seconds:.1f} s of CPU, ")
    sys.stdout.write(f"--family {slowest.family} --number {slowest.number}\n")
    sys.stdout.writelines(f"{described(*key, found)}\n" for key, found in sorted(groups.items()))
    return 1 if groups else 0


if __name__ == "__main__":
    sys.exit(main())
