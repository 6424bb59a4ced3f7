"""The controls without a browser: their values are set as a page would."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from explored import HOSTILE, MS, changes, kernel, run_of, tables
from frames import kernels, ranges
from sampled import samples

from perfkit.run import Run
from perfkit.widgets import page
from perfkit.widgets.choice import Explorer


def brush(explorer: Explorer, *edges: float) -> None:
    """What the page sends once a brush has rested, in ms."""
    value = {"start": [*edges]} if edges else {}
    explorer.view.overview.chart._vl_selections = {"brush": {"value": value, "store": []}}


def drawn(explorer: Explorer) -> dict[str, Any]:
    """The specification of the overview."""
    return dict(explorer.view.overview.chart.spec)


def shown(explorer: Explorer) -> Any:
    """The edges at which the overview's brush is drawn, None without."""
    (param,) = drawn(explorer)["params"]
    return param.get("value", {}).get("x")


def is_hidden(widget: Any) -> bool:
    """Whether the page leaves it out."""
    return bool(widget.layout.display == "none")


def test_pickers_choose(run: Run) -> None:
    """Each sets its trait, which changes the selection once."""
    live = Explorer(run)
    pickers, seen = live.view.controls, changes(live)
    pickers.ranks.value = (0,)
    pickers.gpus.value = (1,)
    pickers.families.value = ("gemm",)
    pickers.kernels.value = "nt"
    pickers.window.value = (10.0, 50.0)
    assert ((0,), (1,), ("gemm",), "nt", (10 * MS, 50 * MS)) == (
        *(live.ranks, live.gpus, live.families, live.kernels),
        live.window,
    )
    assert 5 == len(seen)


def test_pickers_show_what_code_chooses(run: Run) -> None:
    """A window that no control can show is shown as nearly as it can be, and stays itself."""
    live = Explorer(run)
    pickers, seen = live.view.controls, changes(live)
    live.choose(ranks=[1], gpus=[1], families=["softmax"], kernels="soft", window=[12_345_678, 45_000_001])
    assert ((1,), (1,), ("softmax",), "soft") == tuple(
        getattr(pickers, name).value for name in ("ranks", "gpus", "families", "kernels")
    )
    for edges in (pickers.window.value, shown(live)):
        assert (12.345678, 45.000001) == pytest.approx(tuple(edges))
    assert (1, (12_345_678, 45_000_001)) == (len(seen), live.window)
    live.reset()
    assert ((), "", (0.0, 100.0), None) == (
        pickers.gpus.value,
        pickers.kernels.value,
        pickers.window.value,
        shown(live),
    )


def test_a_gpu_that_was_not_recorded_is_for_code_alone(tmp_path: Path) -> None:
    """Kernels of GPU -1 can be chosen by number; the list has the two that have one."""
    work = [kernel(n, "work", "other", gpu=n - 1) for n in range(3)]
    live = Explorer(run_of(tmp_path, {"KERNELS": kernels(*work)}))
    live.gpus = [-1, 1]
    assert ((1,), (("0", 0), ("1", 1))) == (live.view.controls.gpus.value, live.view.controls.gpus.options)
    assert 2 == len(live.selection.kernels)


def test_pickers_follow_a_choice_that_leaves_nothing_as_before(run: Run) -> None:
    """The sentence is the same, the window is not."""
    live = Explorer(run)
    live.kernels = "nothing"
    live.window = (0, 10 * MS)
    assert (0.0, 10.0) == live.view.controls.window.value


def test_brush_sets_the_window_and_is_not_drawn_again(run: Run) -> None:
    """What the page draws already is not sent back; a brush that is cleared chooses all."""
    live = Explorer(run)
    before, seen = drawn(live), changes(live)
    brush(live, 20.0, 60.0)
    assert ((20 * MS, 60 * MS), (20.0, 60.0)) == (live.window, live.view.controls.window.value)
    brush(live)
    assert ((), 2) == (live.window, len(seen))
    assert before == drawn(live)


def test_the_page_repeats_a_window_without_moving_it(run: Run) -> None:
    """A window of 1 ns set by code is drawn as wide as a step; the page reports that, and 1 ns it stays."""
    live = Explorer(run)
    live.window = (20_000_001, 20_000_002)
    first, last = shown(live)
    assert (20.000001, 20.100001) == pytest.approx((first, last))
    seen = changes(live)
    brush(live, first + 1e-9, last - 1e-9)
    assert ([], (20_000_001, 20_000_002)) == (seen, live.window)
    brush(live, 30.0, 40.0)
    assert (30 * MS, 40 * MS) == live.window


def test_the_overview_follows_other_choices(run: Run) -> None:
    """With GPU 1 of rank 1 chosen one strip is left, with the brush where it was; without any work it says so."""
    live = Explorer(run)
    brush(live, 20.0, 60.0)
    live.choose(ranks=[1], gpus=[1])
    (rows,) = drawn(live)["datasets"].values()
    assert {"GPU 1"} == {row["gpu"] for row in rows}
    assert [20.0, 60.0] == pytest.approx(shown(live))
    live.kernels = "nothing"
    assert "No activity in 100 ms" == drawn(live)["title"]["text"]
    live.kernels = ""
    brush(live, 30.0, 40.0)
    assert (30 * MS, 40 * MS) == live.window


def test_steps_are_jumped_to(run: Run) -> None:
    """The number jumps at once, the button again."""
    live = Explorer(run)
    assert "0 to 4, found by profiler step" == live.view.steps.said.value
    live.view.steps.number.value = 2
    assert (40 * MS, 60 * MS) == live.window
    live.window = ()
    live.view.steps.button.click()
    assert (40 * MS, 60 * MS) == live.window


def test_steps_of_a_large_run_are_found_when_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first press finds them, the second jumps; those of a rank without any are refused in words."""
    monkeypatch.setattr(page, "EAGER", 3)
    live = Explorer(run)
    assert ("", True) == (live.view.steps.said.value, live.view.steps.number.disabled)
    live.view.steps.button.click()
    assert ("0 to 4, found by profiler step", ()) == (live.view.steps.said.value, live.window)
    live.view.steps.button.click()
    assert (0, 20 * MS) == live.window
    live.ranks = [1]
    live.view.steps.button.click()
    assert "(none: nothing repeats)" in live.view.steps.said.value


def test_status_says_what_is_chosen(run: Run) -> None:
    """Softmax ran once, for 1 ms; what is not there is a sentence."""
    live = Explorer(run)
    live.kernels = "softmax"
    said = "kernels matching &#x27;softmax&#x27;. Kernel names: 1; launches: 1; their time, added up: 1.00 ms."
    assert said in live.view.status.value
    live.window = (0, MS)
    assert "kernels: nothing ran of" in live.view.status.value


def test_foreign_text_is_escaped(run: Run) -> None:
    """A pattern comes back in a sentence, a name as a completion: neither is markup."""
    live = Explorer(run)
    assert HOSTILE in live.view.controls.kernels.options
    for pattern in (HOSTILE, "<img src=x onerror=alert(1)>"):
        live.kernels = pattern
        assert "<script" not in live.view.status.value
        assert "<img" not in live.view.status.value


def test_completes_the_names_with_most_time(tmp_path: Path) -> None:
    """Of 3000 names the 1000 longest-running are offered, as patterns that find them."""
    work = [kernel(n, f"kernel_{n:04}", "other") | {"dur_ns": n + 1} for n in range(3000)]
    work += [
        kernel(3000, "scan<T[4], int*>", "other"),
        kernel(3010, "x" * 301, "other"),
        kernel(3020, "a\u202eb", "other"),
    ]
    live = Explorer(run_of(tmp_path, {"KERNELS": kernels(*work)}))
    options = live.view.controls.kernels.options
    assert ("scan<T?4], int*>", "kernel_2999", 998) == (options[0], options[1], len(options))
    live.kernels = options[0]
    assert ["scan<T[4], int*>"] == live.selection.kernels["name"].tolist()


def test_pickers_without_a_choice_are_hidden(tmp_path: Path) -> None:
    """A log of one GPU has a window to choose and nothing else; an empty run nothing at all."""
    log = Explorer(run_of(tmp_path, {"SAMPLES": samples(gpu_busy_frac=[0.5, 0.6])})).view
    hidden = {
        name: is_hidden(getattr(log.controls, name)) for name in ("ranks", "gpus", "families", "kernels", "window")
    }
    assert {"ranks": True, "gpus": True, "families": True, "kernels": True, "window": False} == hidden
    assert (True, None) == (is_hidden(log.steps.view), log.overview)
    log.controls.window.value = (0.0, 40.0)
    assert (0, 40 * MS) == log.explorer.window
    empty = Explorer(Run([])).view
    assert is_hidden(empty.controls.window)
    assert "Nothing can be chosen: this run has one rank" in empty.status.value
    assert empty.reset not in [button for row in empty.children for button in getattr(row, "children", ())]


def test_a_run_where_nothing_repeats_has_no_steps(tmp_path: Path) -> None:
    """The picker goes when they are looked for in vain."""
    live = Explorer(run_of(tmp_path, {"KERNELS": kernels(kernel(0, "once", "other")), "RANGES": ranges()}))
    assert is_hidden(live.view.steps.view)


def test_every_control_says_what_it_is_for(run: Run) -> None:
    """A description beside it, and a tooltip."""
    Explorer(run).gpus = [1]
    view = Explorer(run).view
    found = [
        view.controls.ranks,
        view.controls.gpus,
        view.controls.families,
        view.controls.kernels,
        view.controls.window,
    ]
    found += [
        view.last,
        view.steps.number,
        view.steps.button,
        view.reset,
        view.copy,
        view.reporting.button,
        view.parameters,
    ]
    assert [] == [one for one in found if not one.description or not one.tooltip]


def test_buttons_reset_and_show_parameters(run: Run) -> None:
    """The text follows the choice while it is seen, and can be hidden again."""
    live = Explorer(run)
    live.gpus = [1]
    assert is_hidden(live.view.parameters)
    live.view.copy.click()
    assert "\ngpus = [1]\n" in live.view.parameters.value
    live.view.reset.click()
    assert ((), True) == (live.gpus, "\ngpus = []\n" in live.view.parameters.value)
    live.view.copy.click()
    assert is_hidden(live.view.parameters)


def test_the_last_choice_is_a_button(run: Run) -> None:
    """It says what it chooses, chooses it when pressed, and rests while that is chosen; slider and overview follow."""
    Explorer(run).choose(gpus=[1], window=(20 * MS, 60 * MS), kernels="gemm")
    live = Explorer(run)
    button = live.view.last
    assert "Last choice: 0.02 to 0.06 s, GPU 1, kernels matching 'gemm'" == button.description
    assert button in [one for row in live.view.children for one in getattr(row, "children", ())]
    assert ((0.0, 100.0), False) == (live.view.controls.window.value, button.disabled)
    button.click()
    assert ((1,), (20 * MS, 60 * MS), "gemm") == (live.gpus, live.window, live.kernels)
    assert ((20.0, 60.0), [20.0, 60.0], True) == (live.view.controls.window.value, shown(live), button.disabled)
    live.view.reset.click()
    assert not button.disabled


def test_without_a_last_choice_there_is_no_button(run: Run) -> None:
    """Nothing was ever chosen of this run."""
    live = Explorer(run)
    assert live.view.last not in [one for row in live.view.children for one in getattr(row, "children", ())]


def test_a_long_last_choice_is_cut(run: Run) -> None:
    """The button stays a button; what it chooses stands whole in the tooltip."""
    pattern = f"*{HOSTILE}{'*' * 200}"
    Explorer(run).choose(kernels=pattern)
    button = Explorer(run).view.last
    assert f"Last choice: kernels matching '{pattern[:30]}" == button.description[:61]
    assert (True, True) == (len(button.description) < 100, pattern in button.tooltip)


def test_is_shown_as_a_widget(run: Run) -> None:
    """A notebook shows the controls, and below them the view."""
    live = Explorer(run)
    bundle = live._repr_mimebundle_()
    assert live.view.model_id == bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "the view" == live.view.children[-1].value


def test_a_view_with_a_widget_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what stands below the controls."""
    from perfkit.widgets import page

    own = page.ipywidgets.HTML("own")
    views = SimpleNamespace(__all__=["gaps"], gaps=lambda explorer: SimpleNamespace(view=own))
    monkeypatch.setattr(page.importlib, "import_module", lambda name: views)
    assert own is Explorer(run, show="gaps").view.children[-1]


def test_an_old_table_is_not_changed(run: Run) -> None:
    """Choosing filters copies."""
    before = tables()["KERNELS"]
    live = Explorer(run)
    live.choose(gpus=[1], kernels="sgemm")
    assert 1 == len(live.selection.kernels)
    pd.testing.assert_frame_equal(before, run.kernels)
