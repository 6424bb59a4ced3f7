"""What perfkit concludes of a recording, as one object: the only place of these tests that asks perfkit."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import extras

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import recording
from perfkit.diagnosis.finding import Figure, Finding, Refusal
from perfkit.diagnosis.headline import headline, leading
from perfkit.diagnosis.tiles import Tile
from perfkit.errors import PerfkitError
from perfkit.run import Run


@dataclass(frozen=True)
class Judgement:
    """What perfkit concludes of one recording.

    `findings` begin with the one that leads. `path` is where the recording lies, for a truth by SQL; "." for tables
    that no file holds. `truth` is how many times as fast the program is without the cause that was built into it; NaN
    where nobody knows. `error` is what perfkit said instead of all this.
    """

    path: Path
    verdict: str = ""
    tiles: tuple[Tile, ...] = ()
    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    truth: float = math.nan
    error: str = ""

    @property
    def steps_of_advice(self) -> list[str]:
        """All that the findings advise to do or to record, the first step of the first finding first."""
        return [step for finding in self.findings for step in steps_of(finding)]

    @property
    def texts(self) -> list[str]:
        """Every sentence that a reader of the summary sees."""
        return [text for text in self._all_texts() if text]

    def _all_texts(self) -> Iterator[str]:
        yield self.verdict
        for tile in self.tiles:
            yield f"{tile.label} {tile.value} {tile.note}"
        for finding in self.findings:
            yield from (finding.title, finding.explanation, finding.place, finding.gain.why)
            yield from finding.against
        yield from self.steps_of_advice
        yield from self.notes


def steps_of(finding: Finding) -> list[str]:
    """What a finding advises, in its order, and what it wants to have recorded next."""
    steps = [step for steps in finding.advice.values() for step in steps]
    return [*steps, finding.next] if finding.next else steps


def judged(
    source: Path | Run,
    *,
    truth: float = math.nan,
    job: Mapping[str, Any] | None = None,
    **choice: Any,
) -> Judgement:
    """Return what perfkit concludes of a recording, or of the part of it that is chosen."""
    path = source if isinstance(source, Path) else Path()
    extras.require_reader(path.name)
    try:
        run = perfkit.load(source, job=job or {}) if isinstance(source, Path) else source
        view = perfkit.select(run, **choice)
        figures = diagnosis.figures(view)
        findings = diagnosis.findings(view)
        screen = headline(view, figures, findings)
        refusals = diagnosis.refusals(view)
    except PerfkitError as error:
        return Judgement(path, truth=truth, error=str(error))
    first = leading(findings)
    others = [finding for finding in findings if finding not in first]
    return Judgement(
        path,
        screen.verdict,
        screen.tiles,
        (*first, *others),
        figures,
        tuple(refusals),
        recording.notes(view),
        truth,
    )
