"""What must not change: each relation is a change of a recording, and what must then hold of the conclusions."""

from collections.abc import Callable
from typing import NamedTuple

from relations import changes
from relations.judgements import (
    ALIKE,
    PER_STEP,
    STEP_COUNT,
    Judgement,
    judged,
    named,
    new_doubts,
    other_figures,
    other_rules,
    other_verdict,
)
from relations.recordings import Recording

Broken = Callable[[Judgement, Judgement], list[str]]
# Findings on what is outside of the judged part: a longer start-up or a pause may add them.
OUTSIDE = ("start_up", "warm_up", "idle_edge", "pauses")
# Findings that a computing GPU beside the others may add: they are about it.
OF_THE_GPU = ("computation",)
# Findings that more time in kernels can raise above their threshold.
OF_KERNELS = (
    *("computation", "precision", "tensor_cores", "few_blocks", "fusion", "layout", "casts"),
    *("attention", "attention_mask", "unaligned_products", "memory_bandwidth", "recomputation"),
)
# Findings that more idle time can raise above their threshold.
OF_IDLENESS = ("synchronisation", "launch_overhead", "small_operators", "input", "launch_blocking")
IDLE = "idle"
BUSY = "kernel_busy_frac"
MEMORY = "idle_memory"
WITHOUT_A_GAP = 0.05  # of a step, its usual gap (convention)
ROUNDING = 1e-6  # of a share that must not fall


class Relation(NamedTuple):
    """A change of a recording, and a function that returns what does not hold after it, in words."""

    name: str
    change: Callable[[Recording], Recording]
    broken: Broken


def cut(before: Judgement, after: Judgement) -> list[str]:
    """After a cut: the same cause; or another or none with a doubt named, and never at high confidence."""
    if after.first == before.first:
        return []
    broken = []
    if after.confidence == "high":
        broken.append(f"{named(before)} becomes {named(after)}")
    if not new_doubts(before, after):
        broken.append(f"{named(before)} becomes {named(after)} without a new doubt")
    return broken


def unnamed(before: Judgement, after: Judgement) -> list[str]:
    """After the loss of all ranges: the same cause; or another with a doubt, or one that asks for ranges.

    A program without ranges is recorded in the same way, so that nothing in the file can tell of the loss.
    """
    if after.first == before.first or new_doubts(before, after):
        return cut(before, after)
    broken = []
    if after.confidence == "high":
        broken.append(f"{named(before)} becomes {named(after)}")
    if not any("range" in step for step in after.advice):
        broken.append(f"{named(after)} advises no ranges")
    return broken


def outside(before: Judgement, after: Judgement) -> list[str]:
    """After more time outside of the loop: the same verdict and steps; only findings on the outside change.

    The step that holds the pause loses the gap in which it lies, so that the median of a few steps may differ a little.
    """
    broken = other_verdict(before, after) + other_rules(before, after, OUTSIDE)
    return broken + other_figures(before, after, PER_STEP, WITHOUT_A_GAP)


def repeated(before: Judgement, after: Judgement) -> list[str]:
    """After a repetition or through a window: the same verdict and the same figures per step."""
    return other_verdict(before, after) + other_figures(before, after, PER_STEP, ALIKE)


def same(before: Judgement, after: Judgement) -> list[str]:
    """After a change of numbers or order: the same verdict, findings and figures."""
    return other_verdict(before, after) + other_rules(before, after) + other_figures(before, after)


def beside(before: Judgement, after: Judgement) -> list[str]:
    """After a GPU that computes was added: the same verdict and steps; only findings about it change."""
    broken = other_verdict(before, after) + other_rules(before, after, OF_THE_GPU)
    return broken + other_figures(before, after, (*PER_STEP, STEP_COUNT))


def more_work(before: Judgement, after: Judgement) -> list[str]:
    """After kernels took longer: GPUs are busier, no idleness grows, only findings of kernels appear."""
    broken = _appearing(before, after, lambda rule: rule in OF_KERNELS)
    if after.figures[BUSY] < before.figures[BUSY] - ROUNDING:
        broken.append(f"{BUSY} falls from {before.figures[BUSY]:.4g} to {after.figures[BUSY]:.4g}")
    for rule in sorted(before.rules & after.rules):
        if is_idle(rule) and _grows(before, after, rule):
            broken.append(f"the share of {rule} grows")
    if "computation" in before.rules - after.rules:
        broken.append("computation disappears")
    return broken


def more_idleness(before: Judgement, after: Judgement) -> list[str]:
    """After all gaps took longer: each finding on idleness stays and grows, and nothing else appears."""
    broken = _appearing(before, after, is_idle)
    if is_idle(before.first) and before.first != after.first:
        broken.append(f"{named(before)} becomes {named(after)}")
    for rule in sorted(filter(is_idle, before.rules)):
        broken += _not_growing(before, after, rule)
    return broken


def more_memory_calls(before: Judgement, after: Judgement) -> list[str]:
    """After gaps in calls that allocate took longer: their finding stays and grows, and nothing else appears."""
    broken = _appearing(before, after, lambda rule: rule == MEMORY)
    return broken + (_not_growing(before, after, MEMORY) if MEMORY in before.rules else [])


def is_idle(rule: str) -> bool:
    """Tell whether a rule is about idle time."""
    return rule.startswith(IDLE) or rule in OF_IDLENESS or rule in OUTSIDE


def _appearing(before: Judgement, after: Judgement, may: Callable[[str], bool]) -> list[str]:
    appear = [rule for rule in sorted(after.rules - before.rules) if not may(rule)]
    return [f"{', '.join(appear)} appears"] if appear else []


def _grows(before: Judgement, after: Judgement, rule: str) -> bool:
    old, new = before.shares[rule], after.shares[rule]
    return old is not None and new is not None and new > old + ROUNDING


def _not_growing(before: Judgement, after: Judgement, rule: str) -> list[str]:
    if rule in OUTSIDE:
        return []
    if rule not in after.rules:
        return [f"{rule} disappears"]
    old, new = before.shares[rule], after.shares[rule]
    if old is None or new is None or new >= old - ROUNDING:
        return []
    return [f"the share of {rule} falls from {old:.4g} to {new:.4g}"]


RELATIONS = (
    Relation("unchanged", changes.unchanged, same),
    Relation("cut_first_kernels", changes.without_kernels("first"), cut),
    Relation("cut_last_kernels", changes.without_kernels("last"), cut),
    Relation("cut_random_kernels", changes.without_kernels("random"), cut),
    Relation("cut_calls", changes.without_table("API_CALLS"), cut),
    Relation("cut_first_calls", changes.without_half("API_CALLS", "first"), cut),
    Relation("cut_last_operators", changes.without_half("OPS", "last"), cut),
    Relation("cut_ranges", changes.without_table("RANGES"), unnamed),
    Relation("cut_gpu", changes.without_gpu, cut),
    Relation("cut_second_half", changes.without_second_half, cut),
    Relation("outside_start_up", changes.longer_start_up, outside),
    Relation("outside_pause", changes.long_pause, outside),
    Relation("outside_tail", changes.idle_tail, outside),
    Relation("same_loop_twice", changes.loop_twice, repeated),
    Relation("same_window", changes.around_the_work, repeated),
    Relation("same_ranks", changes.other_ranks, same),
    Relation("same_gpus", changes.other_gpus, same),
    Relation("same_streams", changes.other_streams, same),
    Relation("same_ids", changes.other_ids, same),
    Relation("same_shuffled", changes.shuffled, same),
    Relation("same_times", changes.moved_times, same),
    Relation("same_day", changes.another_day, same),
    Relation("beside_gpu", changes.innocent_gpu, beside),
    Relation("beside_process", changes.other_process, same),
    Relation("beside_thread", changes.other_thread, same),
    Relation("double_family", changes.family_doubled, more_work),
    Relation("double_idle", changes.idle_doubled, more_idleness),
    Relation("double_memory", changes.memory_gaps_doubled, more_memory_calls),
)
BY_NAME = {relation.name: relation for relation in RELATIONS}


def broken(relation: Relation, recording: Recording, before: Judgement) -> list[str]:
    """Return what does not hold of a recording; DoesNotApply where the change has nothing to change."""
    return relation.broken(before, judged(relation.change(recording)))
