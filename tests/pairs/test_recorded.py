"""Recorded pairs: what perfkit tells of each difference is what the raw data give (`recorded`)."""

from pathlib import Path

import pandas as pd
import pytest
from pairs import recorded
from pairs.recorded import IDLE, Pair

import perfkit
from perfkit.diagnosis import explained
from perfkit.diagnosis.check import check
from perfkit.diagnosis.comparison import compared

PAIRS = recorded.read()
NEAR_NS = 20  # raw times are rounded to ns, one by one
# Kernels alone show these steps: they need not begin with the first kernel after the loading.
BY_KERNELS = {"ResNet-50, autograd API": 0.003}
CAUSES_FRAC = 0.02  # of idle time in a call, the ledger books calls within it apart


def of_kinds(pair: Pair, lines: pd.DataFrame, side: str) -> list[float]:
    """The ledger's computation, exposed copies, idle time and line of the pair, ns of a step."""
    kind = lines["kind"].astype(str).replace("outside", IDLE)
    sums = lines[f"{side}_ns"].groupby(kind).sum()
    parts = [float(sums.get(name, 0.0)) for name in (recorded.KERNELS, recorded.COPIES, IDLE)]
    names = lines["cause"].astype(str) + ", " + lines["owner"].astype(str)
    mine = kind.eq(pair.kind) & names.str.contains(pair.owner, regex=True)
    return [*parts, float(lines.loc[mine, f"{side}_ns"].sum())]


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
@pytest.mark.sampled(6)
def test_the_difference_is_that_of_the_raw_data(
    pair: Pair, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    profiles = request.getfixturevalue("profiles") if pair.files else None
    paths = recorded.paths(pair, tmp_path, profiles)
    raw = [recorded.raw(pair, path, side) for side, path in enumerate(paths)]
    assert pair.stored == recorded.figures(*raw)
    before, after = map(perfkit.load, paths)
    steps = compared(before, after).steps.set_index("statistic").loc["mean"]
    lines = explained.lines(before, after)
    near = BY_KERNELS.get(pair.name, 0)
    for side, one in zip(("before", "after"), raw, strict=True):
        assert pytest.approx(one.wall, rel=near, abs=NEAR_NS) == steps[f"{side}_ns"]
        *parts, line = of_kinds(pair, lines, side)
        assert pytest.approx(list(one[1:-1]), rel=max(near, 1e-3), abs=NEAR_NS) == parts
        near_ns = max(NEAR_NS, CAUSES_FRAC * raw[0].line) if pair.kind == IDLE else NEAR_NS
        assert pytest.approx(one.line, rel=1e-3, abs=near_ns) == line
    assert pair.status == check(after, before).exit_code
