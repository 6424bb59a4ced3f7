"""Shapes and arguments from a trace's text, which anybody may have written."""

from __future__ import annotations

import pytest

from perfkit.analysis.flops.shapes import Inputs, parsed


@pytest.mark.parametrize(
    "text",
    [
        None,
        float("nan"),
        "",
        "{}",
        "[[8,4]",
        "7",
        "[" * 10_000,
        '["' + "x" * 30_000 + '"]',
        "[" + "9" * 5_000 + "]",
    ],
)
def test_text_that_holds_no_shapes(text: object) -> None:
    """Nothing, half a list, a number, deep nesting, too long a text, an endless number: not recorded, no error."""
    found = parsed(text)
    assert found is None or found.tensor(0) is None


@pytest.mark.parametrize("size", ["-1", "1.5", "true", "null", '"8"', "[8]", "NaN", "1e400", "9007199254740994"])
def test_sizes_that_are_none(size: str) -> None:
    """Negative, broken, a truth value, text, a list of tensors, more elements than there is memory: no tensor."""
    found = parsed(f"[[{size},2],[4]]", '["float","float"]')
    assert found is not None
    assert found.tensor(0) is None
    assert found.tensor(1) is not None


def test_arguments_that_are_not_what_they_should_be() -> None:
    """Text that is no whole number or truth value is none; positions beyond the end are empty."""
    found = parsed("[[1]]", "[7]", '["", 3, "[1, x]", "Trueish", "[True, False]", "1' + "0" * 20 + '"]')
    assert found is not None
    assert [None] * 5 == [found.integers(at) for at in (0, 1, 2, 5, 9)]
    assert [None, (True, False), None] == [found.flags(at) for at in (3, 4, 9)]
    assert parsed("[[1]]", "7", "{}") == Inputs(((1,),), (), None)
