"""What a check says of each figure, and of all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.diagnosis.finding import SPOKEN

PASS, FAIL, ERROR = "pass", "fail", "error"
EXIT = {PASS: 0, FAIL: 1, ERROR: 2}


@dataclass(frozen=True)
class Verdict:
    """A figure that was judged: its values, its limit in words, the outcome (pass, fail or error) and why."""

    id: str
    label: str
    unit: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    limit: str
    outcome: str
    reason: str

    @property
    def values(self) -> str:
        """The values before and after as people read them."""
        said = [SPOKEN[self.unit](v) if self.unit in SPOKEN and v == v else "none" for v in (self.before, self.after)]
        return f"{said[0]} -> {said[1]}"


@dataclass(frozen=True)
class Checked:
    """All verdicts, the failed ones first, and what makes the comparison doubtful."""

    verdicts: tuple[Verdict, ...]
    cautions: tuple[str, ...] = ()
    confidence: str = "high"

    @property
    def outcome(self) -> str:
        """The worst outcome of all: pass, fail or error."""
        return max((verdict.outcome for verdict in self.verdicts), key=EXIT.__getitem__, default=ERROR)

    @property
    def exit_code(self) -> int:
        """0 if all passed, 1 if one is worse, 2 if one could not be judged."""
        return EXIT[self.outcome]


def judged(row: Mapping[str, Any], limit: str, outcome: str, reason: str) -> Verdict:
    """Return the verdict on a row of COMPARED_FIGURES."""
    before, after, ratio, low, high = (
        float(row[name]) for name in ("before", "after", "ratio", "ratio_low", "ratio_high")
    )
    told = str(row["id"]), str(row["label"]), str(row["unit"])
    return Verdict(*told, before, after, ratio, low, high, limit, outcome, reason)


def missing(name: str, limit: str) -> Verdict:
    """Return the verdict on a figure that the budget names and the run does not have."""
    unknown = dict.fromkeys(("before", "after", "ratio", "ratio_low", "ratio_high"), math.nan)
    return judged({"id": name, "label": name, "unit": "", **unknown}, limit, ERROR, "the run has no such figure")
