"""What changed between two runs, line by line of the ledger."""

import pytest
from diagnosis.test_check import training

from perfkit.diagnosis import explained
from perfkit.diagnosis.comparison import compared
from perfkit.report import checked as report


def test_the_lines_add_up_to_the_difference_of_the_mean_step() -> None:
    table = explained.lines(training(), training(12, copy=2.0, seed=1))
    mean = (
        compared(training(), training(12, copy=2.0, seed=1))
        .steps.set_index("statistic")
        .loc["mean"]
    )
    sums = table[["before_ns", "after_ns", "difference_ns"]].sum()
    assert (
        pytest.approx([mean["before_ns"], mean["after_ns"], mean["difference_ns"]], abs=1)
        == sums.tolist()
    )


def test_a_kernel_of_1_ms_that_takes_2_ms_explains_1_ms() -> None:
    table = explained.lines(training(), training(copy=2.0, seed=1)).set_index("cause")
    assert pytest.approx(1e6, rel=0.03) == table.loc["copy", "difference_ns"]


def test_runs_without_steps_or_equal_work_have_no_lines() -> None:
    assert explained.lines(training(count=2), training(count=2)).empty


def test_markdown_is_at_most_40_lines_and_escapes_names() -> None:
    from perfkit.diagnosis.check import check

    found = check(training(12, seed=1), training())
    lines = explained.lines(training(), training(12, seed=1)).astype({"owner": object})
    text = report.as_markdown(found, lines.assign(owner="<b>|x`_y_"))
    assert text.startswith("<!-- perfkit check -->\n### perfkit check: fail")
    assert len(text.splitlines()) <= 40
    assert "<b>" not in text
    assert "&#60;b&#62;&#124;x&#96;&#95;y&#95;" in text
