"""Try on captures what must not change, and print what does.

Usage, from the root of the repository: ``python -m tests.relations [--relation NAME] [CAPTURE ...]``.
NAME is the beginning of a relation's name ("cut" for all cuts), CAPTURE a part of a capture's name;
without them all are tried. A letter stands for a capture and a relation: "." holds, "X" is broken,
"-" does not apply, "!" an error. PERFKIT_PROFILES names the folder of the real captures.

``--mend`` tries the broken cases of ``cases.toml`` alone, and moves to `holds` those that hold again.
``--count`` stores there how many of all captures break each relation.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from relations import captures, known
from relations.judgements import Judgement, judged, named
from relations.recordings import DoesNotApply, Recording
from relations.relations import BY_NAME, RELATIONS, Relation, broken

from perfkit.errors import PerfkitError, ReadError

HOLDS, BROKEN, NOTHING, ERROR = ".X-!"
TOLD = 3  # statements of one capture and relation that are printed
WIDTH = 60  # of a capture's name


def main() -> int:
    """Print a line per capture, what is broken, and how many captures break each relation; 1 if one does."""
    parser = argparse.ArgumentParser(prog="python -m tests.relations")
    parser.add_argument("captures", metavar="CAPTURE", nargs="*", help="part of a capture's name")
    parser.add_argument("--relation", default="", help="beginning of the names of relations")
    parser.add_argument("--mend", action="store_true", help="store which broken cases hold again")
    parser.add_argument("--count", action="store_true", help="store how many captures are broken")
    options = parser.parse_args()
    if options.count and options.captures:
        parser.error("--count: counts are of all captures. Name none.")
    if not os.environ.get("PERFKIT_PROFILES"):
        parser.error("PERFKIT_PROFILES names no folder of real captures")
    chosen = [relation for relation in RELATIONS if relation.name.startswith(options.relation)]
    if not chosen:
        parser.error(
            f"--relation: choose from {', '.join(relation.name for relation in RELATIONS)}"
        )
    if options.mend:
        return _mend()
    begun = time.perf_counter()
    outcomes = []
    for name in captures.every():
        if not options.captures or any(part in name for part in options.captures):
            outcomes += _tried(name, chosen)
    _summarise(chosen, outcomes)
    if options.count:
        _store_counts(chosen, outcomes)
    _print(f"{time.perf_counter() - begun:.0f} s")
    return int(any(BROKEN in marks or ERROR in marks for marks in outcomes))


def _tried(name: str, chosen: Sequence[Relation]) -> list[str]:
    """Try relations on a capture, print what is broken, and return a letter for each relation.

    A file that cannot be read, or without work of a GPU, has no answer.
    """
    try:
        recording = captures.recording(name)
    except ReadError:
        return []  # a file that is there to be refused
    if not captures.works(recording):
        return []
    before = judged(recording)
    answers = [_answer(relation, recording, before) for relation in chosen]
    marks = "".join(mark for mark, _ in answers)
    _print(f"{name[-WIDTH:]:{WIDTH}} {marks} {named(before)}")
    for relation, (_, statements) in zip(chosen, answers, strict=True):
        more = len(statements) - TOLD
        told = [*statements[:TOLD], *([f"and {more} more"] if more > 0 else [])]
        if told:
            _print(f"    {relation.name}: {'; '.join(told)}")
    return [marks]


def _answer(relation: Relation, recording: Recording, before: Judgement) -> tuple[str, list[str]]:
    try:
        statements = broken(relation, recording, before)
    except DoesNotApply:
        return NOTHING, []
    except PerfkitError as error:
        return ERROR, [f"refused: {error}"]
    except Exception as error:  # noqa: BLE001  # a crash is what a relation is there to find
        return ERROR, [f"{type(error).__name__}: {error}"]
    return (BROKEN if statements else HOLDS), statements


def _mend() -> int:
    """Try the cases that are broken, and store which hold again."""
    before = known.read()
    outcomes = {}
    for relation, cases in before.items():
        for name in cases["broken"]:
            mark, statements = _answer(BY_NAME[relation], *captures.prepared(name))
            if mark == HOLDS:
                outcomes[relation, name] = statements
            _print(f"{mark} {relation} {name}: {'; '.join(statements) or 'holds'}")
    known.FILE.write_text(known.written(known.mended(before, outcomes)), encoding="utf-8")
    return 0


def _store_counts(chosen: Sequence[Relation], outcomes: Sequence[str]) -> None:
    cases = known.read()
    for place, relation in enumerate(chosen):
        cases[relation.name]["broken_of_all"] = sum(of[place] == BROKEN for of in outcomes)
    known.FILE.write_text(known.written(cases), encoding="utf-8")


def _summarise(chosen: Sequence[Relation], outcomes: Sequence[str]) -> None:
    _print(f"\n{'relation':24} {'applies':>8} {'holds':>6} {'broken':>7} {'errors':>7}")
    for place, relation in enumerate(chosen):
        marks = [of[place] for of in outcomes]
        counts = [len(marks) - marks.count(NOTHING), *map(marks.count, (HOLDS, BROKEN, ERROR))]
        _print(f"{relation.name:24} {counts[0]:8} {counts[1]:6} {counts[2]:7} {counts[3]:7}")
    _print(f"{len(outcomes)} captures")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFKIT_CACHE"] = folder
        sys.exit(main())
