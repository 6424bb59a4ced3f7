"""A program that reads one report with NVIDIA's module `ncu_report` and writes what it holds as JSON.

The reader runs it in a process of its own (``python vendor.py REPORT SECONDS``), because NVIDIA's
library ends the process on some damaged reports. It imports nothing but the standard library and
that module: it starts in 0.1 s. The module hands on whatever a damaged report holds: no metric for
a name that it listed, names that are no text, launches without a name. Such values are left out and
counted. The answer is one JSON object, as the reader's `_Answer` describes it; ``problem`` is
"module" or "report".
"""

import importlib
import json
import math
import os
import sys
from typing import Any


def main(path: str, seconds: int) -> None:
    """Write the answer to standard output, which the library itself cannot reach."""
    _limit(seconds)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the library prints goes where messages go
    with os.fdopen(answer, "w", encoding="ascii") as file:
        json.dump(_read(path), file, allow_nan=False)
    # The answer is written: nothing that the library does when it is unloaded can spoil it
    os._exit(0)


def _limit(seconds: int) -> None:
    """Let the system end this process, without a core file, if nobody waits for it any more."""
    try:
        resource = importlib.import_module("resource")  # Windows has none
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * seconds, 2 * seconds))


def _read(path: str) -> dict[str, Any]:
    try:
        module = importlib.import_module("ncu_report")
    except (ImportError, OSError) as e:
        return {"problem": "module", "text": str(e)}
    try:
        context = module.load_report(path)
    except (RuntimeError, OSError) as e:
        return {"problem": "report", "text": str(e)}
    ranges = [context.range_by_idx(i) for i in range(context.num_ranges())]
    return _Contents(
        [part.action_by_idx(i) for part in ranges for i in range(part.num_actions())]
    ).answer()


class _Contents:
    """What a report holds, and how much of it is not readable."""

    def __init__(self, actions: list[Any]) -> None:
        self._metrics: dict[tuple[str, str], int] = {}
        self._unreadable = 0
        self._example = ""
        self._launches: list[dict[str, Any]] = []
        self._rules: list[dict[str, Any]] = []
        for action in actions:
            self._add(action)

    def answer(self) -> dict[str, Any]:
        """Return the JSON object without a problem."""
        return {
            "metrics": list(self._metrics),
            "launches": self._launches,
            "rules": self._rules,
            "unreadable": self._unreadable,
            "example": self._example,
        }

    def _add(self, action: Any) -> None:
        """Add a launch; one without a name and metrics is none."""
        number = len(self._launches)
        name = _text(action.name(action.NameBase_DEMANGLED))
        launch = self._launch(action, number)
        if not name:
            self._miss(f"the name of launch {number}")
        if name or launch["metrics"]:
            self._launches.append({"name": name or "(no name)", **launch})
            self._rules += self._rules_of(action, number)

    def _launch(self, action: Any, number: int) -> dict[str, Any]:
        """Return the numbers of a launch, as places in ``metrics`` and values, and its texts."""
        places: list[int] = []
        values: list[float] = []
        texts: dict[str, str] = {}
        for listed in action.metric_names():
            name = _text(listed)
            metric = action.metric_by_name(name) if name and name == listed else None
            unit = None if metric is None else _text(metric.unit())
            if metric is None or unit is None or not name:
                self._miss(f"metric {listed!r} of launch {number}")
                continue
            value = metric.value()
            if isinstance(value, str):
                texts[name] = _text(value) or ""
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                if math.isfinite(value):
                    places.append(self._metrics.setdefault((name, unit), len(self._metrics)))
                    values.append(float(value))
            elif value is not None:
                self._miss(f"metric {listed!r} of launch {number}")
        return {"metrics": places, "values": values, "texts": texts}

    def _rules_of(self, action: Any, number: int) -> list[dict[str, Any]]:
        """Return the messages of the guided analysis about a launch."""
        rules = []
        for result in action.rule_results_as_dicts():
            if not result.get("rule_message"):
                continue
            rule, message = (
                _text(result.get("rule_identifier")),
                _text(result["rule_message"].get("message")),
            )
            if rule is None or message is None:
                self._miss(f"a rule of launch {number}")
                continue
            gain = result.get("speedup_estimation") or {}
            percent, scope = gain.get("speedup"), gain.get("type", 0)
            rules.append(
                {
                    "launch": number,
                    "rule": rule,
                    "message": message,
                    "percent": float(percent)
                    if isinstance(percent, float) and math.isfinite(percent)
                    else None,
                    "scope": scope if isinstance(scope, int) else 0,
                }
            )
        return rules

    def _miss(self, example: str) -> None:
        self._unreadable += 1
        self._example = self._example or example


def _text(value: Any) -> str | None:
    """Return a text without what is no Unicode (the module hands such bytes on as surrogates); None if it is none."""
    return (
        value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if isinstance(value, str)
        else None
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
