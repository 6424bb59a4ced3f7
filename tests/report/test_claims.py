"""Published figures on the first page: each beside the same figure of this recording, and why they differ."""

from pathlib import Path

import pandas as pd
import pytest

import perfkit
from perfkit import diagnosis, report
from perfkit.selection import Selection

PUBLISHED = "hpctoolkit/published_figures/metrics_data.json"


@pytest.fixture(scope="module")
def view(profiles: Path) -> Selection:
    return perfkit.select(perfkit.load(profiles / "hpctoolkit" / "hpctoolkit-dlrm-gpu-database"))


@pytest.fixture(scope="module")
def table(view: Selection, profiles: Path) -> pd.DataFrame:
    return report.claims(view, diagnosis.figures(view), str(profiles / PUBLISHED)).set_index(
        "claim"
    )


@pytest.mark.parametrize(
    ("claim", "published", "true"),
    [
        ("GPU utilisation", "0.24 %", "0.17 % of the wall time"),
        ("Copies in kernel and copy time", "78.4 %", "52.9 %"),
        ("Kernel launches", "145,100", "7,400"),
        ("Mean kernel", "5.48 µs", "8.90 µs"),
    ],
)
def test_a_claim_stands_beside_the_true_figure(
    table: pd.DataFrame, claim: str, published: str, true: str
) -> None:
    assert [published, true] == table.loc[claim, ["published", "true here"]].tolist()


def test_a_claim_says_that_the_same_mistake_gives_as_much_here(table: pd.DataFrame) -> None:
    assert "counted once per caller" in table.loc["Kernel launches", "why they differ"]
    assert (
        table.loc["Kernel launches", "counted the same way here"]
        != table.loc["Kernel launches", "true here"]
    )


def test_the_product_of_gains_is_refuted_with_the_bound_of_this_recording(
    view: Selection, profiles: Path
) -> None:
    said = report.promise(view, diagnosis.figures(view), str(profiles / PUBLISHED))
    assert said is not None
    assert "multiplied to 351.5x, which is wrong" in said.text
    assert "In this recording, all of them together gain at most 1.0027x." in said.text


def test_without_a_file_nothing_is_compared(view: Selection) -> None:
    assert report.claims(view, {}).empty
    assert report.promise(view, {}) is None
