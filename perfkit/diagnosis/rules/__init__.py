"""The rules, one module per theme: each rule is one object, and nothing else names it."""

from collections.abc import Mapping
from functools import cache
from types import ModuleType

from perfkit.diagnosis.extensions import extensions
from perfkit.diagnosis.finding import Finding
from perfkit.diagnosis.rules import (
    allocator,
    call_paths,
    collectives,
    copies,
    counters,
    idle,
    kernels,
    launches,
    limits,
    machine,
    network,
    operators,
    requests,
    sharing,
    steps,
)
from perfkit.diagnosis.rules.rule import Rule

THEMES = (
    idle,
    steps,
    requests,
    launches,
    copies,
    collectives,
    kernels,
    limits,
    counters,
    operators,
    allocator,
    call_paths,
    machine,
    sharing,
    network,
)


NO_RULE = Rule(name="", question="", needs=(), evidence=(), threshold="", advice=(), next="")


@cache
def rules() -> Mapping[str, Rule]:
    """Return all rules by name: theme by theme, in the order of the modules, then those of extensions."""
    return {rule.name: rule for theme in themes() for rule in _of(theme)}


def rule_of(finding: Finding) -> Rule:
    """Return the rule of a finding; one that says nothing where the package that brings it is gone."""
    return rules().get(finding.rule, NO_RULE)


def themes() -> tuple[ModuleType, ...]:
    """Return the modules of rules, those of extensions last."""
    return (*THEMES, *(part.RULES for part in extensions()))


@cache
def by_kind(theme: ModuleType) -> Mapping[str, Rule]:
    """Return the rules of a theme that one analysis tells among others, by what it calls them."""
    return {rule.kind: rule for rule in _of(theme) if rule.kind}


def _of(theme: ModuleType) -> list[Rule]:
    return [value for value in vars(theme).values() if isinstance(value, Rule)]


@cache
def snippets() -> Mapping[str, str]:
    """Return the code that shows how a step is done, by the text of the step."""
    steps = [step for rule in rules().values() for step in rule.advice]
    return {step.text: step.code.strip() for step in steps if step.code}
