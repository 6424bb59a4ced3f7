"""The code is ready for the string type of pandas 3, which pandas 2 has as an option.

Hatchet allows no pandas 3 yet, so a stub replaces it: perfkit needs it for call graphs alone.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from pandas.api.types import union_categoricals

from perfkit.report.notebooks import sample
from perfkit.schema import labelled

# Runs the cells of a notebook on a profile, and prints what they show.
SCRIPT = """
import json
import sys
import types
import warnings

import pandas as pd

sys.modules["hatchet"] = types.ModuleType("hatchet")
pd.options.future.infer_string = sys.argv[1] == "3"
warnings.simplefilter("ignore")

import cells

executed = cells.execute(sys.argv[2], profile=sys.argv[3])
for cell, shown in executed.shown:
    print(cell, json.dumps(shown, default=str, sort_keys=True))
"""
MINUTE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d (?=by perfkit)")  # at which a report was made
CASES = [("0_executive_summary", "h100_copies/before"), ("5_framework", "h100_copies/before")]


def test_categories_of_text_have_one_type_with_the_strings_of_pandas_3() -> None:
    with pd.option_context("future.infer_string", True):
        by_hand = pd.Series(pd.Categorical.from_codes([0], pd.Index(["a"], dtype=object)))
        cast = labelled(pd.Series(["b"]).astype("category"))
        assert ["a", "b"] == list(union_categoricals([by_hand, cast]).categories)


def _shown(pandas: str, notebook: str, profile: Path, cache: Path) -> list[str]:
    command = [sys.executable, "-c", SCRIPT, pandas, notebook, str(profile)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PERFKIT_CACHE": str(cache),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr[-3000:]
    return [MINUTE.sub("", line) for line in done.stdout.splitlines()]


@pytest.mark.matrix
@pytest.mark.parametrize(("notebook", "run"), CASES)
def test_a_notebook_shows_the_same_with_the_strings_of_pandas_3(
    notebook: str, run: str, tmp_path: Path
) -> None:
    """The second process reads what the first one left in the cache."""
    expected = _shown("2", notebook, sample(run), tmp_path)
    assert expected
    assert expected == _shown("3", notebook, sample(run), tmp_path)
