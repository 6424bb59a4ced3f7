"""A rule about NCCL Inspector: a rank that comes late."""

from perfkit.diagnosis.rules.rule import LINKS, Rule, now, soon

INSPECTED_LATE = Rule(
    name="inspected_late",
    question="Does one rank come late to a collective, again and again?",
    needs=("INSPECTED",),
    evidence=("inspected_wait_ns", "inspected_late_frac"),
    target="none",
    threshold=(
        "A rank is the last to come in three quarters of at least three collectives of one size, "
        "and the others wait a tenth of the transfer or more (conventions)"
    ),
    advice=(
        now(
            "Look at what this rank does before the collective: record a timeline on it and on "
            "another rank ({nsys})"
        ),
        now("Leave the links alone: the wait for this rank is long, and not the transfer"),
        soon("Give all ranks the same CPU work, or move the work of one rank out of the loop"),
    ),
    next="Record a timeline on every rank: {nsys}",
    notebook=LINKS,
    kind="late",
)
