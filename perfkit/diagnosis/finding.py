"""What a diagnosis is made of: figures, findings that rest on them, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from perfkit.format import duration, number, percent, size

HORIZONS = ("immediate", "medium-term", "long-term")
SEVERITIES = ("high", "medium", "low")
SPOKEN: dict[str, Callable[[float], str]] = {
    "1": percent,
    "ns": duration,
    "bytes": size,
    "FLOP": lambda flops: f"{flops:,.0f} FLOP",
    "FLOP/s": lambda rate: f"{number(rate / 1e12)} TFLOP/s",
    "FLOP/byte": lambda intensity: f"{number(intensity)} FLOP/byte",
    "bytes/s": lambda rate: f"{size(rate)}/s",
    "count": lambda count: f"{count:,.0f}",
    "1/s": lambda rate: f"{number(rate)} per second",
}


@dataclass(frozen=True)
class Figure:
    """A number that can be believed: its value with unit, what it means and where it was taken from.

    Units are 1 (a fraction), ns, bytes, bytes/s, FLOP, FLOP/s, FLOP/byte, count and 1/s.
    """

    id: str
    label: str
    value: float
    unit: str
    definition: str
    source: str

    @property
    def text(self) -> str:
        """The value as people read it, with its unit.

        Examples
        --------
        >>> Figure("idle_frac", "GPU idle", 0.5, "1", "", "").text
        '50.0 %'
        """
        return SPOKEN[self.unit](self.value)


@dataclass(frozen=True)
class Gain:
    """A range for the speed-up if a finding is mended, and why it is no narrower."""

    low: float
    high: float
    reason: str

    @property
    def text(self) -> str:
        """The range as people read it.

        Examples
        --------
        >>> Gain(1.0, 2.5, "").text
        '1.0x to 2.5x'
        """
        return f"{self.low:.1f}x to {number(self.high) if self.high >= 10 else f'{self.high:.1f}'}x"


@dataclass(frozen=True)
class Finding:
    """Something that costs time, the figures that show it, what mending it can gain, and what to do."""

    rule: str
    title: str
    severity: str
    explanation: str
    evidence: tuple[Figure, ...]
    target: str
    gain: Gain
    advice: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Refusal:
    """A question this run cannot answer, why, and what to record so that it can."""

    question: str
    reason: str
    record: str


def plain(item: Figure | Finding | Refusal) -> dict[str, Any]:
    """Return an item as a dictionary of JSON values, figures with the text people read."""
    values = asdict(item)
    if isinstance(item, Figure):
        values["text"] = item.text
    if isinstance(item, Finding):
        values["evidence"] = [figure.id for figure in item.evidence]
        values["gain"]["text"] = item.gain.text
    return values
