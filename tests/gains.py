"""Hold the ranges that perfkit tells for gains against what is true: `python -m tests.gains [KIND ...]`.

A row per case: the rule, the range, the truth, whether the range holds it, and how wide it is.
Kinds are `measured` (archives of an H200 and an H100), `adversary` (seed 0, or
`adversary:SEED`) and `cases` (situations of tests/cases); all of them by default. In the measured
archives every second case is one to fit on, the others are to judge by.
"""

import math
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from adversary.cases import CASES as PLANTED
from adversary.cases import plan
from adversary.test_adversary import ONCE, SLACK
from cases import test_advice, test_causes, test_gains, test_kernels, test_start_up, test_untold
from cases.judging import judged
from cases.situations import Situation
from diagnosis.measured import ADVISED, CASES, ROOM, extracted, faster, step_times

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import Finding
from perfkit.diagnosis.headline import ranked
from perfkit.diagnosis.replayed import saving
from perfkit.diagnosis.rules import rules
from perfkit.selection import Selection

MODULES = (test_advice, test_causes, test_gains, test_kernels, test_start_up, test_untold)
KINDS = ("measured", "adversary", "cases")
# Whose span is not their speed, or which no finding of the loop can mend.
NO_TRUTH = {
    "waiting_for_requests": "a server without requests is idle by design",
    "prefilling": "start-up is outside of the loop",
    "uploading_weights": "start-up is outside of the loop",
    "saving_at_the_end": "what happens once at the end is outside of the loop",
    "busy_for_seconds": "only the log shows its cause",
}


@dataclass(frozen=True)
class Row:
    """What perfkit tells of the gain of one case, and how many times as fast it is in truth."""

    kind: str
    case: str
    rule: str
    low: float
    high: float
    true: float
    is_replayed: bool
    room: float = SLACK

    @property
    def is_known(self) -> bool:
        """Whether perfkit says how much can be gained at most."""
        return math.isfinite(self.high)

    @property
    def is_inside(self) -> bool:
        """Whether the range holds the truth, but for what two runs of one program differ by."""
        return self.holds(self.room)

    def holds(self, room: float) -> bool:
        """Whether the range holds the truth, with so much room at both ends."""
        return self.low * (1 - room) <= self.true <= self.high * (1 + room)

    @property
    def width(self) -> float:
        """How many times its beginning the end of the range is."""
        return self.high / self.low


def measured() -> Iterator[Row]:
    """The archives: the planted cause against the mended form, and advice against what it gained."""
    times = step_times()
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(sorted(CASES)):
            kind = ("measured, to fit", "measured, to judge")[number % 2]
            rule = CASES[case][0]
            yield _of_archive(kind, f"{case}-bad", rule, faster(times)[case], Path(folder))
        for number, (name, rule, how) in enumerate(sorted(ADVISED)):
            kind = ("measured, to fit", "measured, to judge")[number % 2]
            gained = times[name] / times[f"{name}-{how}"]
            yield _of_archive(kind, name, rule, gained, Path(folder))


def _of_archive(kind: str, name: str, rule: str, true: float, folder: Path) -> Row:
    view = perfkit.select(perfkit.load(extracted(name, folder)))
    told = ranked(diagnosis.findings(view))
    found = next(finding for finding in told if finding.rule == rule)
    return replace(_row(kind, name, found, true, view), room=ROOM)


def adversary(seed: int = 0) -> Iterator[Row]:
    """The programs with planted causes: the finding of the cause, where perfkit tells it first."""
    for name in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            made = plan(name, seed)
            view = diagnosis.judged(perfkit.load(made.write(made.run(), Path(folder))))
            told = diagnosis.findings(view)
            meant = [cause for cause in made.first() if told and told[0].rule in cause.names]
            if made.quiet or not meant or told[0].rule in ONCE:
                continue
            true = made.gain(meant[0], is_loop=view.window is not None)
            yield _row("adversary", name, told[0], true, view)


def situations() -> Iterator[Row]:
    """The situations of tests/cases: what is told first."""
    seen = set()
    for module in MODULES:
        for situation in vars(module).values():
            if not isinstance(situation, Situation) or situation in seen:
                continue
            seen.add(situation)
            with tempfile.TemporaryDirectory() as folder:
                recording = situation.recorded(Path(folder))
                told = judged(recording.source, truth=recording.truth).findings
                name = situation.program.__qualname__.partition(".")[0]
                if told and recording.truth > 1 + SLACK and name not in NO_TRUTH:
                    view = perfkit.select(perfkit.load(recording.source))
                    yield _row("cases", name, told[0], recording.truth, view)


def _row(kind: str, case: str, told: Finding, true: float, view: Selection) -> Row:
    change = rules()[told.rule].change
    is_replayed = change is not None and saving(diagnosis.judged(view), change) is not None
    return Row(kind, case, told.rule, told.gain.low, told.gain.high, true, is_replayed)


def chosen(words: Iterable[str]) -> Iterator[Row]:
    """The rows of the kinds that are asked for."""
    for word in words:
        kind, _, seed = word.partition(":")
        if kind == "measured":
            yield from measured()
        elif kind == "adversary":
            yield from adversary(int(seed or 0))
        elif kind == "cases":
            yield from situations()
        else:
            raise SystemExit(f"{word}: not one of {', '.join(KINDS)}")


def line(row: Row) -> str:
    """Return a row of the table."""
    verdict = _verdict(row)
    how = "replayed" if row.is_replayed else "bound"
    told = f"{row.low:7.2f} {row.high:7.2f} {row.true:7.2f} {row.width:6.2f}"
    return f"{row.kind:19} {row.case:25} {row.rule:22} {told}  {verdict:7} {how}"


def _verdict(row: Row) -> str:
    if not row.is_known:
        return "unknown"
    if row.is_inside:
        return "inside"
    return "above" if row.true > row.high else "below"


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield a line for each kind: how many ranges hold the truth, and their median width."""
    for kind in dict.fromkeys(row.kind for row in rows):
        yield f"{kind}: {_counts([row for row in rows if row.kind == kind])}"
    yield f"all: {_counts(rows)}"


def _counts(rows: list[Row]) -> str:
    known = [row for row in rows if row.is_known]
    widths = [row.width for row in known if row.is_replayed]
    inside = sum(row.is_inside for row in known)
    closely = sum(row.holds(SLACK) for row in known)
    wide = f"{median(widths):.2f}" if widths else "none"
    return (
        f"{inside} of {len(known)} inside ({closely} with {SLACK:.0%} room), "
        f"{len(rows) - len(known)} unknown, median width of {len(widths)} replayed {wide}"
    )


def main() -> None:
    """Print the table and its summary."""
    rows = []
    _print(f"{'kind':19} {'case':25} {'rule':22} {'low':>7} {'high':>7} {'true':>7} {'width':>6}")
    for row in chosen(sys.argv[1:] or KINDS):
        rows.append(row)
        _print(line(row))
    for text in summary(rows):
        _print(text)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
