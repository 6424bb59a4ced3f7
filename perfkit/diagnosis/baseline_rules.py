"""Rules about step 1: collectives far below the line rate of their links, and trainings that use little of the peak.

Thresholds: NCCL's ring reaches 0.82 of NVLink's line rate on eight H100 (370 of 450 GB/s, NVIDIA/nccl-tests issue
212), and operations of published logs of eight A100 or H100 at least 0.75; below 0.6 something is wrong, and below 0.4,
half of what a ring reaches, severely (conventions). Dense trainings in 16 bits on A100 and H100: a share of the peak
(MFU) below 0.2 is poor, below 0.35 low, 0.45 to 0.55 good, above 0.7 beyond what was ever published, above 1 impossible
and refused (facts of the sources, section 4; the guide's symptom of bottleneck 1 is below 0.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfkit.analysis import communication
from perfkit.diagnosis import advice
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing
from perfkit.format import percent
from perfkit.selection import Selection

LOW_RATE, POOR_RATE = 0.6, 0.4
LOW_MFU, POOR_MFU, GOOD_MFU, SUSPICIOUS_MFU = 0.35, 0.2, 0.55, 0.7
STILL_GROWING = 0.1  # of the next smaller messages; a plateau is flatter (convention)
MFU, RATE = "baseline_mfu_frac", "_ratio"
OF_LINKS = "a benchmark says how fast the links are, not how much of its time a program communicates"


def findings(known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what benchmarks of communication and logs of trainings show."""
    yield from _bandwidth(known)
    for name, share in known.items():
        if name.startswith(MFU):
            yield from _training(share)


def _bandwidth(known: Mapping[str, Figure]) -> Iterator[Finding]:
    """One finding for all operations that are far below the line rate, the slowest first."""
    rates = [figure for name, figure in known.items() if name.startswith("baseline_") and name.endswith(RATE)]
    low = sorted((figure for figure in rates if figure.value < LOW_RATE), key=lambda figure: figure.value)
    if not low:
        return
    slowest = low[0]
    reached = [known[figure.id.removesuffix(RATE) + "_bytes_per_s"] for figure in low]
    title = f"{reached[0].label} is {slowest.text} of the line rate of the links"
    listed = ", ".join(f"{figure.label} {figure.text}" for figure in reached[:5])
    others = f"; {len(rates) - len(low)} other operations reach more" if len(rates) > len(low) else ""
    text = f"Of the largest messages, as bus bandwidth: {listed}{others}. {slowest.label}: {slowest.definition}."
    level = "high" if slowest.value < POOR_RATE else "medium"
    gain = Gain(1.0, float("inf"), OF_LINKS)
    evidence = tuple(figure for pair in zip(low, reached, strict=True) for figure in pair)
    yield Finding("bus_bandwidth", title, level, text, evidence, "above 75 %", gain, advice.LINKS)


def _training(share: Figure) -> Iterator[Finding]:
    text = f"{share.label}: {share.definition}."
    of = share.label.partition(", ")[2]
    whose = f" of {of}" if of else ""
    if share.value > SUSPICIOUS_MFU:
        title = f"An MFU{whose} of {share.text} is more than any published training reaches"
        gain = Gain(1.0, 1.0, "the figure is in doubt, not the program: with the right peak or count it is lower")
        yield Finding("training_mfu_suspicious", title, "low", text, (share,), "35 to 55 %", gain, advice.MFU_IN_DOUBT)
    if share.value >= LOW_MFU:
        return
    level = "high" if share.value < POOR_MFU else "medium"
    title = f"The training{whose} uses {share.text} of the GPU's arithmetic (MFU)"
    reason = f"good trainings of dense models reach {percent(GOOD_MFU)}; at least nothing, if this one cannot"
    gain = removing(1 - share.value / GOOD_MFU, reason)
    yield Finding("training_mfu", title, level, text, (share,), "35 to 55 %", gain, advice.LOW_MFU)


def growing(view: Selection) -> str:
    """Return why the largest messages may not show what the links carry, empty if they do: the curve is not flat."""
    crossing = communication.plateau(view.collectives)
    crossing = crossing[crossing["bus_bytes_per_s"] > 0]
    growth = crossing.loc[crossing["ranks"].eq(crossing["ranks"].max()), "growth_frac"]
    if growth.isna().all():
        return "one size of messages was measured: whether larger ones reach more is not known"
    if growth.max() < STILL_GROWING:
        return ""
    return f"the bandwidth still grows by {percent(float(growth.max()))} up to the largest messages"
