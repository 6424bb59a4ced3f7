"""What the explorer's traits accept, and what the choice leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import traitlets
from explored import HOSTILE, MS, capture, changes, run_of, tables
from frames import kernels
from sampled import samples

import perfkit
from perfkit.names.families import FAMILIES
from perfkit.profile import Profile
from perfkit.run import Run
from perfkit.tables import LAUNCHES
from perfkit.widgets.choice import Explorer, explorer


def test_is_a_selection_where_nobody_watches(run: Run) -> None:
    """A run becomes the selection of all of it, and a selection stays what it is."""
    chosen = perfkit.select(run, gpus=[1])
    assert chosen is explorer(chosen)
    still = explorer(run)
    assert isinstance(still, perfkit.Selection)
    assert perfkit.select(run).description == still.description


def test_begins_with_the_selection_it_is_given(run: Run, watched: None) -> None:
    """The parameters of the notebook are the first choice."""
    live = explorer(perfkit.select(run, ranks=[0], gpus=[1], window=(0, 50 * MS), kernels="gemm", families=["gemm"]))
    assert isinstance(live, Explorer)
    assert ((0,), (1,), (0, 50 * MS), "gemm", ("gemm",)) == (
        *(live.ranks, live.gpus, live.window, live.kernels),
        live.families,
    )
    assert ["sgemm_nt"] == live.selection.kernels["name"].tolist()


def test_knows_what_the_notebook_was_given(run: Run, watched: None, tmp_path: Path) -> None:
    """Paths beside the notebook are whole in what is copied; what was not given has no line."""
    live = explorer(run, baseline=tmp_path / "before", peaks="")
    assert isinstance(live, Explorer)
    live.view.copy.click()
    lines = live.view.parameters.value.splitlines()
    assert lines[1].endswith(f" --baseline {tmp_path.resolve()}/before")
    assert f'baseline = "{tmp_path.resolve()}/before"' in lines
    assert f'baseline: "{tmp_path.resolve()}/before"' in lines
    assert "peaks" not in live.view.parameters.value


def test_an_unknown_view_is_refused(run: Run) -> None:
    """The legal names are listed, also where nobody watches."""
    with pytest.raises(ValueError, match=r"show: 'timelime' is no view. Choose from timeline\."):
        explorer(run, show="timelime")


@pytest.mark.parametrize(
    "choice",
    [
        {"ranks": [1]},
        {"gpus": [1], "window": [0, 45 * MS]},
        {"kernels": "SGEMM_n?"},
        {"families": ["softmax", "gemm"], "ranks": [0, 1]},
        {"kernels": "script", "window": [60 * MS, 61 * MS]},
    ],
)
def test_parameters_choose_the_same_tables(run: Run, choice: dict[str, Any]) -> None:
    """What `perfkit.select` makes of `parameters` is what the explorer shows."""
    live = Explorer(run)
    live.choose(**choice)
    again = perfkit.select(run, **live.parameters)
    for table in ("kernels", "other_kernels", "copies", "ranges", "devices"):
        pd.testing.assert_frame_equal(getattr(live.selection, table), getattr(again, table))
    assert again.window == live.selection.window


def test_one_selection_per_choice(run: Run) -> None:
    """Three traits set together change it once, the same value again not at all."""
    live = Explorer(run)
    seen = changes(live)
    live.gpus = [1]
    live.choose(ranks=[0], window=[0, 50 * MS], kernels="gemm")
    live.gpus = (1,)
    assert [(1,), (1,)] == [one.gpus for one in seen]
    assert seen[-1] is live.selection
    live.reset()
    assert (3, "all GPUs, the whole recording, all kernels") == (len(seen), live.selection.description)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"gpus": [7]}, r"gpus: the run does not have 7. Choose from 0, 1\."),
        ({"ranks": [0, 2]}, r"ranks: the run does not have 2. Choose from 0, 1\."),
        ({"gpus": ["1"]}, r"gpus: the run does not have '1'. Choose from 0, 1\."),
        ({"gpus": [True]}, r"gpus: the run does not have True"),
        ({"families": ["gem"]}, r"families: the run does not have 'gem'. Choose from gemm, softmax, other\."),
        ({"window": [5]}, r"window: \[5\] is not a start and a later end"),
        ({"window": [5, 5]}, r"window: \[5, 5\] is not a start and a later end"),
        ({"window": [0.5, 5]}, r"window: \[0.5, 5\] is not a start and an end in whole ns"),
        ({"window": [0, float("inf")]}, r"window: \[0, inf\] is not a start and an end in whole ns"),
        ({"window": [0, 200 * MS]}, r"window: 0 s to 0.2 s reaches beyond the recording, which spans 0 s to 0.1 s"),
        ({"kernels": 3}, r"The 'kernels' trait .* expected a unicode string"),
    ],
)
def test_what_the_run_does_not_have_is_refused(run: Run, choice: dict[str, Any], message: str) -> None:
    """The choice stays as it was, with the others that were set together."""
    live = Explorer(run)
    seen = changes(live)
    with pytest.raises(traitlets.TraitError, match=message):
        live.choose(ranks=[1], **choice) if "ranks" not in choice else live.choose(**choice)
    assert ([], (), "") == (seen, live.ranks, live.kernels)


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"kernels": "gemv"}, "kernels: none of the 4 kernel names contains 'gemv'. Choose for example 'sgemm"),
        ({"kernels": "softmax", "window": [0, 10 * MS]}, "kernels: nothing ran of all GPUs, 0 s to 0.01 s, kernels"),
        ({"kernels": "softmax", "gpus": [0]}, "kernels: nothing ran of GPU 0, the whole recording, kernels matching"),
        ({"families": ["gemm"], "ranks": [1]}, "kernels: nothing ran of rank 1, all GPUs"),
        ({"families": ["gemm"], "kernels": "softmax"}, "families: no kernel is of gemm and contains 'softmax'"),
        ({"ranks": [0], "gpus": [1], "kernels": "soft"}, "kernels: nothing ran of rank 0, GPU 1"),
    ],
)
def test_a_choice_that_leaves_nothing_is_a_sentence(run: Run, choice: dict[str, Any], sentence: str) -> None:
    """There is no selection then, and there is one again as soon as the choice leaves something."""
    live = Explorer(run)
    live.choose(**choice)
    assert live.selection is None
    assert live.problem.startswith(sentence)
    live.reset()
    assert ("", True) == (live.problem, live.selection is not None)


def test_a_gpu_of_another_rank_is_a_sentence(tmp_path: Path) -> None:
    """GPU 1 is the run's, but not rank 0's."""
    work = kernels({"start_ns": 0, "dur_ns": 5}, {"start_ns": 0, "dur_ns": 5, "rank": 1, "gpu": 1})
    live = Explorer(run_of(tmp_path / "absent", {"KERNELS": work}))
    live.choose(ranks=[0], gpus=[0, 1])
    assert (None, "gpus: the run has no activity on GPU 1. Choose from 0.") == (live.selection, live.problem)


def test_a_window_is_kept_to_the_ns(run: Run) -> None:
    """Integers that no control could show come back as they were set; whole floats are taken."""
    live = Explorer(run)
    live.window = (1, 99_999_999)
    assert (1, 99_999_999) == live.window == live.selection.window
    live.window = (1e6, 2e6)
    assert [int, int] == [type(edge) for edge in live.window]


def test_jumps_to_a_step(run: Run) -> None:
    """Step 3 lasts from 60 ms to 80 ms; there is no step 5."""
    live = Explorer(run)
    live.jump(3)
    assert (60 * MS, 80 * MS) == live.window
    with pytest.raises(ValueError, match=r"step: 5 is not among the steps that were found \(0 to 4\)"):
        live.jump(5)
    live.ranks = [1]
    with pytest.raises(ValueError, match=r"found \(none: nothing repeats\)"):
        live.jump(3)


def test_runs_without_a_timeline(tmp_path: Path) -> None:
    """Of an empty run, a log, or counters alone everything can be chosen, and of the latter kernels by name."""
    empty = Explorer(Run([]))
    assert ((), ()) == (empty.offer.ranks, empty.offer.span)
    log = Explorer(run_of(tmp_path, {"SAMPLES": samples(gpu_busy_frac=[0.5, 0.6])}))
    assert ((0,), (0, 100 * MS)) == (log.offer.gpus, log.offer.span)
    log.window = (0, MS)
    assert (0, MS) == log.selection.window
    counted = Explorer(run_of(tmp_path, {"LAUNCHES": _launches("sgemm", "softmax")}))
    assert {"gemm", "softmax"} == {*counted.offer.families}
    counted.families = ["gemm"]
    assert ["sgemm"] == counted.selection.launches["name"].tolist()
    counted.kernels = "softmax"
    assert counted.problem.startswith("families: no kernel is of gemm and contains 'softmax'")


def _launches(*names: str) -> pd.DataFrame:
    """LAUNCHES with these names."""
    rows = {column.name: 0 for column in LAUNCHES.columns}
    texts = {column.name: "" for column in LAUNCHES.columns if column.dtype in ("string", "category")}
    frame = pd.DataFrame(
        [{**rows, **texts, "launch": n, "name": name, "full_name": name} for n, name in enumerate(names)]
    )
    return LAUNCHES.make(frame)


def test_counters_beside_a_timeline_know_more_kernels(tmp_path: Path) -> None:
    """A kernel that only the counters saw can be chosen, as `perfkit.select` lets it; in a window it never ran."""
    run = run_of(tmp_path, tables() | {"LAUNCHES": _launches("flash_fwd_kernel")})
    live = Explorer(run)
    live.kernels = "flash"
    assert 1 == len(live.selection.launches)
    live.window = (0, MS)
    assert live.selection is None


def test_hostile_names_choose_like_others(run: Run) -> None:
    """A name is text to look for, nothing more."""
    live = Explorer(run)
    live.kernels = HOSTILE
    assert [HOSTILE] == live.selection.kernels["name"].tolist()


def test_families_are_in_their_order(run: Run) -> None:
    """However they were set."""
    live = Explorer(run)
    live.families = ["softmax", "gemm", "softmax"]
    assert ["gemm", "softmax"] == [one for one in FAMILIES if one in live.families] == [*live.families]


def test_ranks_are_the_profiles(tmp_path: Path) -> None:
    """A rank that recorded nothing but its capture can be chosen: that it did nothing is an answer."""
    idle = Profile("nsys", tmp_path, capture(), {}, rank=1)
    busy = Profile("nsys", tmp_path, capture(), {"KERNELS": lambda: tables()["KERNELS"].iloc[:1]}, rank=0)
    live = Explorer(Run([busy, idle]))
    live.ranks = [1]
    assert (1,) == live.selection.ranks
    assert live.on_lanes is None
    assert live.totals.empty
