"""The pictures and tables of the notebooks are one call each."""

from pathlib import Path
from types import FunctionType

import pytest
from widgets.viewed import chosen, csv, small, still

import perfkit
from perfkit.logs import views as of_logs
from perfkit.widgets import pictures, tables

DATA = Path(__file__).parents[2] / "data"
VIEWS = {
    f"{module.__name__}.{name}": view
    for module in (of_logs, pictures, tables)
    for name, view in vars(module).items()
    if isinstance(view, FunctionType)
    and view.__module__ == module.__name__
    and not name.startswith("_")
}


# Views of which a report leaves out the section where the recording holds nothing of the kind.
LEFT_OUT = {f"perfkit.widgets.tables.{name}" for name in ("fusible", "overlap")}


@pytest.mark.parametrize("name", sorted(VIEWS.keys() - LEFT_OUT))
def test_a_view_of_two_kernels_is_one_part_or_more(name: str) -> None:
    assert still(VIEWS[name](chosen(small()))).parts


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_a_report_shows_nothing_of_what_two_kernels_do_not_do(name: str) -> None:
    assert not still(VIEWS[name](chosen(small()))).parts


def test_the_longest_wait_stands_first() -> None:
    run = perfkit.load(DATA / "mlp_a100")
    lengths = csv(still(tables.longest_waits(chosen(run))))["dur_ns"]
    assert len(lengths) > 1
    assert lengths.is_monotonic_decreasing
