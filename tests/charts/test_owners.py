"""The owners of a part of the time, below the bars of the parts."""

import pandas as pd
from charts.checking import checked

from perfkit.charts.owners import OTHERS, by_owner


def ledger(*lines: tuple[str, str, str, int]) -> pd.DataFrame:
    found = pd.DataFrame(lines, columns=["kind", "cause", "owner", "ns"])
    return found.assign(rank=0, gpu=0)


WORK = ("computation", "gemm", "sgemm", 60)


def test_the_largest_part_without_work_is_shown_first() -> None:
    spec = checked(
        by_owner(ledger(WORK, ("idle", "sync", "item", 10), ("idle", "host_code", "step", 30)))
    )
    chosen = [one for one in spec["params"] if one["name"] == "part"]
    assert [[{"part": "idle: CPU code"}]] == [one["value"] for one in chosen]
    rows = [(row["part"], row["owner"], row["told"]) for row in rows_below(spec)]
    assert ("idle: CPU code", "step", "30.0 %") in rows
    assert ("computation", "sgemm", "60.0 %") in rows


def test_many_owners_are_told_as_six_and_the_rest() -> None:
    lines = [("idle", "host_code", f"f{at}", 10) for at in range(9)]
    rows = rows_below(checked(by_owner(ledger(*lines))))
    assert 7 == len(rows)
    assert [(OTHERS, "33.3 %")] == [
        (row["owner"], row["told"]) for row in rows if row["owner"] == OTHERS
    ]


def rows_below(spec: dict) -> list[dict]:  # type: ignore[type-arg]
    return list(spec["vconcat"][1]["layer"][0]["rows"])
