"""The controls without a browser: their values are set as a page would; and the button that makes a report."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frames import kernels, ranges
from sampled import samples
from widgets.explored import HOSTILE, MS, changes, kernel, run_of, tables

import perfkit
from perfkit.charts.vega import library
from perfkit.run import Run
from perfkit.widgets import page
from perfkit.widgets.choice import Explorer
from perfkit.widgets.page import Axis

pytestmark = pytest.mark.usefixtures("page_of_tests")


def brush(explorer: Explorer, *edges: float) -> None:
    explorer.view.overview.chart.edges = [*edges]


def drawn(explorer: Explorer) -> dict[str, Any]:
    return dict(explorer.view.overview.chart.spec)


def shown(explorer: Explorer) -> Any:
    return explorer.view.overview.chart.edges


def is_hidden(widget: Any) -> bool:
    return bool(widget.layout.display == "none")


def test_pickers_choose(run: Run) -> None:
    live = Explorer(run)
    pickers, seen = live.view.controls, changes(live)
    pickers.ranks.value = (0,)
    pickers.gpus.value = (1,)
    pickers.families.value = ("gemm",)
    pickers.kernels.value = "nt"
    pickers.window.value = (10.0, 50.0)
    assert ((0,), (1,), ("gemm",), "nt") == (live.ranks, live.gpus, live.families, live.kernels)
    assert (10 * MS, 50 * MS) == live.window
    assert 5 == len(seen)


def test_pickers_show_what_code_chooses(run: Run) -> None:
    live = Explorer(run)
    pickers, seen = live.view.controls, changes(live)
    live.choose(
        ranks=[1], gpus=[1], families=["softmax"], kernels="soft", window=[12_345_678, 45_000_001]
    )
    values = tuple(
        getattr(pickers, name).value for name in ("ranks", "gpus", "families", "kernels")
    )
    assert ((1,), (1,), ("softmax",), "soft") == values
    for edges in (pickers.window.value, shown(live)):
        assert (12.345678, 45.000001) == pytest.approx(tuple(edges))
    assert (1, (12_345_678, 45_000_001)) == (len(seen), live.window)
    live.reset()
    values = (pickers.gpus.value, pickers.kernels.value, pickers.window.value, shown(live))
    assert ((), "", (0.0, 100.0), []) == values
    live.kernels = "nothing"
    live.window = (0, 10 * MS)  # the sentence is the same, the window is not
    assert (0.0, 10.0) == pickers.window.value
    bundle = live._repr_mimebundle_()
    assert live.view.model_id == bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "the view" == live.view.children[-1].value
    pd.testing.assert_frame_equal(tables()["KERNELS"], run.kernels)  # choosing filters copies


def test_brush_sets_the_window_and_no_window_draws_anew(run: Run) -> None:
    live, again = Explorer(run), []
    live.view.overview.chart.observe(lambda change: again.append(change["new"]), ["spec"])
    seen = changes(live)
    brush(live, 20.0, 60.0)
    assert ((20 * MS, 60 * MS), (20.0, 60.0)) == (live.window, live.view.controls.window.value)
    brush(live)
    assert ((), 2) == (live.window, len(seen))
    brush(live, 20.0, 60.0)
    live.reset()
    live.window = (10 * MS, 30 * MS)
    assert ([], [10.0, 30.0]) == (again, shown(live))
    live.gpus = [1]
    assert ([drawn(live)], [10.0, 30.0]) == (again, shown(live))


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


def test_the_program_of_the_overview_brings_its_library() -> None:
    program = page.Brushed._esm
    assert library() in str(program)
    assert "esm.sh" not in str(program)  # loads nothing from the network


def test_steps_are_jumped_to(run: Run) -> None:
    live = Explorer(run)
    assert "0 to 4, found by profiler step" == live.view.steps.said.value
    live.view.steps.number.value = 2
    assert (40 * MS, 60 * MS) == live.window
    live.window = ()
    live.view.steps.button.click()
    assert (40 * MS, 60 * MS) == live.window
    with pytest.raises(
        ValueError, match=r"step: 5 is not among the steps that were found \(0 to 4\)"
    ):
        live.jump(5)


def test_steps_of_a_large_run_are_found_when_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    live = Explorer(run)
    live.kernels = "softmax"
    said = "kernels matching &#x27;softmax&#x27;. Kernel names: 1; launches: 1; their time, added up: 1.00 ms."
    assert said in live.view.status.value
    live.window = (0, MS)
    assert "kernels: nothing ran of" in live.view.status.value
    assert HOSTILE in live.view.controls.kernels.options
    for pattern in (HOSTILE, "<img src=x onerror=alert(1)>"):
        live.kernels = pattern
        assert not re.search("<script|<img", live.view.status.value)


def test_completes_the_names_with_most_time(tmp_path: Path) -> None:
    """Of 3000 names the 1000 longest-running are offered, as patterns that find them."""
    work = [kernel(n, f"kernel_{n:04}", "other") | {"dur_ns": n + 1} for n in range(3000)]
    strange = {3000: "scan<T[4], int*>", 3010: "x" * 301, 3020: "a\u202eb"}
    work += [kernel(start, name, "other") for start, name in strange.items()]
    live = Explorer(run_of(tmp_path, {"KERNELS": kernels(*work)}))
    options = live.view.controls.kernels.options
    assert ("scan<T?4], int*>", "kernel_2999", 998) == (options[0], options[1], len(options))
    live.kernels = options[0]
    assert ["scan<T[4], int*>"] == live.selection.kernels["name"].tolist()


def test_pickers_without_a_choice_are_hidden(tmp_path: Path) -> None:
    log = Explorer(run_of(tmp_path, {"SAMPLES": samples(gpu_busy_frac=[0.5, 0.6])})).view
    assert all(
        is_hidden(getattr(log.controls, name)) for name in ("ranks", "gpus", "families", "kernels")
    )
    assert not is_hidden(log.controls.window)
    assert (True, None) == (is_hidden(log.steps.view), log.overview)
    log.controls.window.value = (0.0, 40.0)
    assert (0, 40 * MS) == log.explorer.window
    empty = Explorer(Run([])).view
    assert is_hidden(empty.controls.window)
    assert "Nothing can be chosen: this run has one rank" in empty.status.value
    once = Explorer(
        run_of(tmp_path, {"KERNELS": kernels(kernel(0, "once", "other")), "RANGES": ranges()})
    )
    assert is_hidden(once.view.steps.view)  # where nothing repeats
    assert empty.reset not in [
        button for row in empty.children for button in getattr(row, "children", ())
    ]


def test_every_control_says_what_it_is_for(run: Run) -> None:
    Explorer(run).gpus = [1]
    view = Explorer(run).view
    controls = [
        getattr(view.controls, name) for name in ("ranks", "gpus", "families", "kernels", "window")
    ]
    controls += [
        view.last,
        view.steps.number,
        view.steps.button,
        view.reset,
        view.copy,
        view.reporting.button,
    ]
    assert [] == [
        one for one in [*controls, view.parameters] if not one.description or not one.tooltip
    ]


def test_buttons_reset_and_show_parameters(run: Run) -> None:
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
    live = Explorer(run)
    assert live.view.last not in [
        one for row in live.view.children for one in getattr(row, "children", ())
    ]
    pattern = f"*{HOSTILE}{'*' * 200}"
    live.choose(kernels=pattern)
    button = Explorer(
        run
    ).view.last  # it stays a button; what it chooses stands whole in the tooltip
    assert f"Last choice: kernels matching '{pattern[:30]}" == button.description[:61]
    assert (True, True) == (len(button.description) < 100, pattern in button.tooltip)
    live.choose(gpus=[1], window=(20 * MS, 60 * MS), kernels="gemm")
    live = Explorer(run)
    button = live.view.last
    assert "Last choice: 0.02 to 0.06 s, GPU 1, kernels matching 'gemm'" == button.description
    assert button in [one for row in live.view.children for one in getattr(row, "children", ())]
    assert ((0.0, 100.0), False) == (live.view.controls.window.value, button.disabled)
    button.click()
    assert ((1,), (20 * MS, 60 * MS), "gemm") == (live.gpus, live.window, live.kernels)
    assert ((20.0, 60.0), [20.0, 60.0], True) == (
        live.view.controls.window.value,
        shown(live),
        button.disabled,
    )
    live.view.reset.click()
    assert not button.disabled


AXIS = Axis(0, 100_000_000)  # 100 ms in 1000 steps of 0.1 ms


@pytest.mark.parametrize(
    ("moved", "window", "chosen"),
    [
        ((20.0, 70.0), (), (20_000_000, 70_000_000)),
        ((0.0, 70.0), (), (0, 70_000_000)),
        ((12.345678, 70.0), (12_345_678, 50_000_001), (12_345_678, 70_000_000)),
        ((12.3, 50.000001), (12_345_678, 50_000_001), (12_345_678, 50_000_001)),
        ((0.04, 99.96), (12_345_678, 50_000_001), ()),
        ((30.0, 30.0), (), (30_000_000, 30_100_000)),
        ((100.0, 100.0), (), (99_900_000, 100_000_000)),
        ((-5.0, 40.0), (), (0, 40_000_000)),
    ],
)
def test_edges_that_stayed_keep_their_ns(
    moved: tuple[float, float], window: tuple[int, ...], chosen: object
) -> None:
    assert chosen == AXIS.chosen(moved, window)


def test_what_is_shown_is_not_moved() -> None:
    """Sent back as it was shown, a window of 1 ns, one beyond the axis and one between steps stay themselves."""
    for window in [
        (5, 6),
        (99_999_999, 100_000_000),
        (12_345_678, 12_345_679),
        (-50, 200_000_000),
        (10**9, 10**10),
        (),
    ]:
        assert window == AXIS.chosen(AXIS.shown(window), window)
    assert (7, 8) == Axis(7, 8).chosen((7.0, 7.4), ())


def command(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(page, "COMMAND", (sys.executable, "-c", program))


def pressed(explorer: Explorer) -> Any:
    part = explorer.view.reporting
    part.button.click()
    thread = part.thread
    if thread:
        thread.join(60)
    return part


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_the_command_of_the_choice(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(monkeypatch, "import json, sys; json.dump(sys.argv[1:], open('said', 'w'))")
    live = Explorer(run)
    live.choose(gpus=[1], window=[0, 50 * MS], families=["gemm"])
    part = pressed(live)
    path, out, folder, *options = json.loads((here / "said").read_text())
    assert (str(run.profiles[0].path), "--out", here) == (path, out, Path(folder).parent)
    assert ["--gpus", "1", "--window", "0ns:50000000ns", "--families", "gemm"] == options
    assert "The report is ready" in part.status.value
    page = f"{Path(folder).name}/index.html"
    assert (
        f'<a href="{page}" target="_blank">{page}</a>' in part.link.outputs[0]["data"]["text/html"]
    )
    pressed(live)
    assert folder == json.loads((here / "said").read_text())[2]
    given = Explorer(
        perfkit.select(run, **live.parameters),
        baseline="before.sqlite",
        peaks=Path("a/../peaks.csv"),
    )
    pressed(given)
    _, _, other, *options = json.loads((here / "said").read_text())
    assert {"--baseline", f"{here}/before.sqlite", "--peaks", f"{here}/peaks.csv"} < {*options}
    assert folder != other


def test_says_what_went_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    command(
        monkeypatch,
        "import sys; print('report\\nperfkit: <script>: no', file=sys.stderr); sys.exit(2)",
    )
    part = pressed(Explorer(run))
    assert "could not be made: perfkit: &lt;script&gt;: no" in part.status.value
    assert (False, ()) == (part.button.disabled, part.link.outputs)
    command(monkeypatch, "import sys; sys.exit(3)")
    assert "it ended with status 3" in pressed(Explorer(run)).status.value
    monkeypatch.setattr(page, "COMMAND", ("/no/such/program",))
    assert "No such file" in pressed(Explorer(run)).status.value
    part._make(["\0"], Path("out"))
    assert "embedded null byte" in part.status.value


def test_one_report_at_a_time(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TICK", 0.05)
    command(monkeypatch, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    live = Explorer(run)
    part = live.view.reporting
    part.button.click()
    live.gpus = [1]
    assert part.button.disabled
    first = part.thread
    part.start()
    assert first is part.thread
    (here / "go").touch()
    first.join(60)
    assert not part.button.disabled


def test_nothing_to_report(run: Run, tmp_path: Path) -> None:
    live = Explorer(run)
    live.kernels = "nothing"
    assert live.view.reporting.button.disabled
    live.kernels = ""
    assert not live.view.reporting.button.disabled
    loose = pressed(Explorer(run_of(tmp_path / "absent", tables())))
    assert "not read from one file or folder" in loose.status.value


def test_python_m_perfkit_is_the_command() -> None:
    done = subprocess.run([*page.COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: perfkit report" in done.stdout
