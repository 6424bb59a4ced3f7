"""Shares of the stall reasons, and the words for them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from counted import stalls

from perfkit.analysis.warps import main_stall, stall_shares, stall_words
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import STALLS

NCU = (
    "barrier branch_resolving dispatch_stall drain gmma imc_miss lg_throttle long_scoreboard math_pipe_throttle "
    "membar mio_throttle misc no_instruction no_instructions not_selected selected short_scoreboard sleeping "
    "tex_throttle wait"
)


def test_shares_by_hand() -> None:
    """6 + 3 + 1 = 10: shares 0.6, 0.3 and 0.1; what issued counts in the sum and has no place."""
    found = stall_shares(stalls({"selected": 1.0, "long_scoreboard": 6.0, "wait": 3.0}))
    assert ["long_scoreboard", "wait", "selected"] == found["reason"].tolist()
    assert [0.6, 0.3, 0.1] == found["share_frac"].tolist()
    assert [1, 2, pd.NA] == found["place"].tolist()


def test_a_total_is_never_added() -> None:
    """stl_any = 30 + 10 is left out however it is spelled: shares are 0.75 and 0.25."""
    found = stall_shares(stalls({"stl_any": 40, "stl_gmem": 30, "stl_sync": 10}, {"GINS:STL_ANY": 8, "gmem": 8}))
    assert [("stl_gmem", 0.75), ("stl_sync", 0.25), ("gmem", 1.0)] == list(
        zip(found["reason"], found["share_frac"], strict=True)
    )


def test_each_launch_and_each_node_has_its_own_sum() -> None:
    """Launch 1 does not thin out launch 0, and rows of nodes are looked at on their own."""
    both = pd.concat([stalls({"wait": 4, "drain": 4}, {"wait": 9}), stalls({"wait": 1, "drain": 3}, nodes=True)])
    both = STALLS.make(both)
    assert [0.5, 0.5, 1.0] == stall_shares(both)["share_frac"].tolist()
    assert [("drain", 0.75), ("wait", 0.25)] == list(
        stall_shares(both, by="node")[["reason", "share_frac"]].itertuples(index=False, name=None)
    )


def test_ties_are_in_order_of_the_reason() -> None:
    """Equal values stand in order of their names, on every run."""
    assert ["barrier", "drain", "wait"] == stall_shares(stalls({"wait": 1, "barrier": 1, "drain": 1}))[
        "reason"
    ].tolist()


def test_nothing_waited() -> None:
    """Where all values are 0 there is no share, and no main stall."""
    nothing = stalls({"wait": 0, "drain": 0})
    assert stall_shares(nothing)["share_frac"].isna().all()
    assert main_stall(nothing).empty


def test_missing_values_are_not_counted() -> None:
    """A reason that was not measured has neither share nor place, and the others share all."""
    found = stall_shares(stalls({"wait": np.nan, "drain": 2.0})).set_index("reason")
    assert (1.0, 1) == (found.loc["drain", "share_frac"], found.loc["drain", "place"])
    assert pd.isna(found.loc["wait", "share_frac"])
    assert pd.isna(found.loc["wait", "place"])


def test_main_stall_says_what_it_means() -> None:
    """The largest stall of each launch comes with its words; that selected is larger does not matter."""
    found = main_stall(stalls({"selected": 9.0, "barrier": 2.0, "wait": 1.0}, {"unheard_of": 1.0}))
    assert ["barrier", "unheard_of"] == found["reason"].tolist()
    assert [stall_words["barrier"].means, ""] == found["means"].tolist()
    assert [stall_words["barrier"].helps, ""] == found["helps"].tolist()


def test_every_reason_of_the_tool_has_words() -> None:
    """Each reason is explained by a sentence and by what helps, in both spellings of the plural one."""
    assert [] == [reason for reason in NCU.split() if reason not in stall_words]
    assert all(text.endswith(".") for said in stall_words.values() for text in said)
    assert stall_words["no_instruction"] == stall_words["no_instructions"]


def test_shares_equal_a_loop() -> None:
    """On random values shares are those of a plain loop, and add up to 1 per launch."""
    rng = np.random.default_rng(3)
    values = [dict(zip(["wait", "drain", "barrier", "selected"], rng.random(4), strict=True)) for _ in range(50)]
    found = stall_shares(stalls(*values)).set_index(["launch", "reason"])["share_frac"]
    for i, of_launch in enumerate(values):
        for reason, value in of_launch.items():
            assert pytest.approx(value / sum(of_launch.values()), rel=1e-12) == found[i, reason]
    assert pytest.approx(np.ones(50), rel=1e-12) == found.groupby("launch").sum().to_numpy()


def test_empty_table() -> None:
    """No rows give no rows, with the columns and dtypes of a full answer."""
    full, empty = stall_shares(stalls({"wait": 1.0})), stall_shares(STALLS.empty())
    assert len(empty) == 0
    assert full.dtypes.drop("reason").to_dict() == empty.dtypes.drop("reason").to_dict()
    assert "category" == empty["reason"].dtype
    assert main_stall(STALLS.empty()).empty


def test_input_is_left_alone() -> None:
    """The table that is asked about does not change."""
    table = stalls({"wait": 1.0, "stl_any": 2.0})
    before = table.copy(deep=True)
    main_stall(table)
    pd.testing.assert_frame_equal(before, table)


def test_wrong_arguments() -> None:
    """Another table, another key and negative values are refused."""
    with pytest.raises(SchemaError, match="STALLS"):
        stall_shares(pd.DataFrame({"reason": []}))
    with pytest.raises(ValueError, match=r"by: 'kernel' is not one of \['launch', 'node'\]"):
        stall_shares(STALLS.empty(), by="kernel")
    with pytest.raises(PerfkitError, match="-2, below 0"):
        stall_shares(stalls({"wait": -2.0}))
