"""What pytest leaves out, and what its last lines say of that.

`--remaining` runs only the tests that have not passed in this folder: continuous integration runs all of them in an
environment without extras and captures, and then the others with both. A test marked `sampled(n)` runs with every
n-th of its cases; the others are of the `matrix`, which `-m matrix` runs.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LONG = ("tests/workloads/", "tests/verdicts/", "tests/browser/")  # import PyTorch, or take a minute
PASSED = "perfkit/passed"  # in pytest's cache: the tests that passed


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--remaining`."""
    text = "run only the tests that did not pass in the last run without this option, or since"
    parser.addoption("--remaining", action="store_true", help=text)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules without tests and examples: a look for examples imports all, PyTorch too."""
    if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
        return None
    return b">>>" not in collection_path.read_bytes() or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has passed, if `--remaining` says so, and give the matrix its cases before it is left out.

    Long files come first: of two workers none is alone with them at the end.
    """
    _sample(items)
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    if not config.getoption("remaining"):
        return
    passed = _passed(config)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    """Say last what was not tested, and why: one line for each reason."""
    yield
    _remember(config, {report.nodeid for report in terminalreporter.stats.get("passed", [])})
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(_reason(report) for report in reports)
    for reason, count in reasons.most_common():
        noun = "test" if count == 1 else "tests"
        terminalreporter.write_line(f"not tested: {count} {noun}: {reason}")


def _sample(items: list[pytest.Item]) -> None:
    """Mark all cases of a sampled test `matrix`, except every n-th."""
    seen: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is None or item.get_closest_marker("matrix"):
            continue
        test = item.nodeid.partition("[")[0]
        if seen[test] % sampled.args[0]:
            item.add_marker("matrix")
        seen[test] += 1


def _passed(config: pytest.Config) -> set[str]:
    """Return the names of the tests that passed in this folder; none where pytest keeps no cache."""
    cache = getattr(config, "cache", None)
    return set(cache.get(PASSED, [])) if cache else set()


def _remember(config: pytest.Config, passed: set[str]) -> None:
    """Store the tests that passed, where pytest keeps a cache; `--remaining` adds them to the earlier ones."""
    cache = getattr(config, "cache", None)
    if cache is None:
        return
    if config.getoption("remaining"):
        passed = passed | _passed(config)
    cache.set(PASSED, sorted(passed))


def _reason(report: Any) -> str:
    """Return why a test was skipped; the report has file, line and reason."""
    _, _, text = report.longrepr
    return str(text).removeprefix("Skipped: ")
