"""The dossier that a click on the timeline shows agrees with that of all kernels."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import perfkit
from perfkit.analysis import dossier
from perfkit.analysis.lanes import Lanes, Launching
from perfkit.selection import select
from perfkit.widgets.timeline_data import Dossiers

SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"


def test_dossiers_agree_with_the_analysis() -> None:
    """Every sixth kernel of the sample alone, counters, operator and all: its row of the dossier of all kernels."""
    run = perfkit.load(SAMPLE)
    seen, lanes = select(run), Lanes(run.kernels, run.copies)
    traced = seen.framework
    whole = dossier.kernels(
        *(seen.kernels, seen.launches, seen.stalls, traced.ops, run.calltree, run.call_metrics),
        devices=seen.devices,
        traced=traced.kernels,
        api_calls=traced.api_calls,
        python_calls=traced.python_calls,
    )
    names = whole["name"].tolist()[::6]
    one = Dossiers(run, lanes, Launching(run.api_calls))
    found = [one.of(name, seen, lanes.span) for name in names]
    kept = whole[whole["name"].isin(names)].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, pd.concat(found, ignore_index=True))
