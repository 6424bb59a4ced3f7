"""A selection filters every table alike, and refuses what was not recorded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import extras
import pandas as pd
import pytest
from frames import api_calls, copies, kernels, profile, ranges
from readers import hpctoolkit_files
from real import MFU
from sampled import samples

import perfkit
from perfkit import diagnosis
from perfkit.errors import PerfkitError
from perfkit.names.families import family
from perfkit.profile import Profile
from perfkit.report.notebooks import sample
from perfkit.tables import OPS

PLACE = {"start_ns": 0, "dur_ns": 10}


def _run() -> perfkit.Run:
    """Two GPUs, 0 to 100 ns: gemm on both, softmax and a copy on GPU 1."""
    on = kernels(
        {"start_ns": 0, "dur_ns": 10, "gpu": 0, "name": "sgemm_tn"},
        {"start_ns": 5, "dur_ns": 10, "gpu": 1, "name": "sgemm_nt"},
        {"start_ns": 20, "dur_ns": 10, "gpu": 1, "name": "Softmax<float>"},
    )
    return perfkit.Run(
        [profile(dur_ns=100, KERNELS=on, COPIES=copies({"start_ns": 40, "dur_ns": 5, "gpu": 1}))]
    )


def test_gpus_and_kernels_choose_rows_of_every_table() -> None:
    view = perfkit.select(_run(), gpus=[1])
    assert (2, 1) == (len(view.kernels), len(view.copies))
    by_text = perfkit.select(_run(), kernels="softmax")
    by_pattern = perfkit.select(_run(), kernels="SGEMM_?t")
    assert ["Softmax<float>"] == by_text.kernels["name"].tolist()
    assert ["sgemm_nt"] == by_pattern.kernels["name"].tolist()
    assert 2 == len(by_pattern.other_kernels)
    view = perfkit.select(_run())
    assert (3, 0, None) == (len(view.kernels), len(view.other_kernels), view.window)
    view = perfkit.select(_run(), gpus=[0], window=(0, 50), kernels="sgemm")
    assert "GPU 0, 0 s to 5e-08 s, kernels matching 'sgemm'" == view.description


def test_call_paths_have_no_window(tmp_path: Path) -> None:
    run = perfkit.load(hpctoolkit_files.sample(tmp_path / "hpctoolkit-app-database"))
    with pytest.raises(
        PerfkitError, match="window: the metrics of call paths are sums over the whole run"
    ):
        perfkit.select(run, window=(0, 10))


def _two_ranks() -> perfkit.Run:
    works = [
        kernels(PLACE | {"name": f"{family}_tn", "family": family})
        for family in ("gemm", "softmax")
    ]
    calls = [api_calls(PLACE | {"name": name}) for name in ("cudaLaunchKernel", "cuLaunchKernel")]
    about = [{"rank": rank} for rank in (0, 1)]
    found = zip(about, works, calls, strict=True)
    return perfkit.Run(
        [profile(dur_ns=100, about=a, KERNELS=work, API_CALLS=call) for a, work, call in found]
    )


def test_ranks_and_families_choose_rows_of_every_table() -> None:
    view = perfkit.select(_two_ranks(), ranks=[1], gpus=[0])
    assert ["softmax_tn"] == view.kernels["name"].tolist()
    assert ["cuLaunchKernel"] == view.api_calls["name"].tolist()
    assert "rank 1, GPU 0, the whole recording, all kernels" == view.description
    view = perfkit.select(_two_ranks(), families=["gemm"])
    assert ["gemm_tn"] == view.kernels["name"].tolist()
    assert ["softmax_tn"] == view.other_kernels["name"].tolist()
    assert 1 == len(perfkit.select(_two_ranks(), families=["gemm"], kernels="tn").kernels)
    chosen = perfkit.select(perfkit.Run([]))
    assert chosen.selection is chosen


def _three_processes() -> perfkit.Run:
    """Processes 10 and 11 work on a GPU each; process 12 loads data and works on none."""
    work = kernels(
        PLACE | {"gpu": 0, "process": 10},
        PLACE | {"gpu": 1, "process": 11},
    )
    calls = api_calls(*(PLACE | {"process": process} for process in (10, 11, 12)))
    return perfkit.Run([profile(dur_ns=100, KERNELS=work, API_CALLS=calls)])


def test_a_process_that_works_on_another_gpu_only_is_left_out() -> None:
    view = perfkit.select(_three_processes(), gpus=[1])
    assert [11, 12] == view.api_calls["process"].tolist()


def test_all_processes_stay_where_all_gpus_are_chosen() -> None:
    view = perfkit.select(_three_processes(), gpus=[0, 1])
    assert [10, 11, 12] == view.api_calls["process"].tolist()


@pytest.mark.parametrize("gpus", ["[1]", "1", 1, " 1 ", [1], ["1"]])
def test_gpus_are_chosen_as_people_and_papermill_write_them(gpus: Any) -> None:
    assert (1,) == perfkit.select(_run(), gpus=gpus).gpus


@pytest.mark.parametrize("window", ["10ns:50ns", "[10, 50]", "0.01us:0.05us", [10, 50], [10.0, 50]])
def test_a_window_is_chosen_as_people_and_papermill_write_it(window: Any) -> None:
    assert (10, 50) == perfkit.select(_run(), window=window).window


@pytest.mark.parametrize("families", ["gemm", "gemm,", "['gemm']", ["gemm"]])
def test_families_are_chosen_as_people_and_papermill_write_them(families: Any) -> None:
    assert ("gemm",) == perfkit.select(_two_ranks(), families=families).families


def test_a_number_is_a_text_in_the_names_of_kernels() -> None:
    with pytest.raises(PerfkitError, match="none of the 3 kernel names contains '1024'"):
        perfkit.select(_run(), kernels=1024)  # type: ignore[arg-type]  # papermill's -p


@pytest.mark.parametrize(
    ("made", "choice", "said"),
    [
        (_run, {"window": "7s:5s"}, "window: 7.00 s to 5.00 s does not end after its start"),
        (_run, {"window": "5:7"}, "window: '5' is no time with a unit of s, ms"),
        (_run, {"window": 5}, "window: 5 is not a start and a later end, for example 5s:7s"),
        (_run, {"gpus": "one"}, "gpus: 'one' is no list of numbers, for example 0,2"),
        (_run, {"gpus": 1.5}, "gpus: 1.5 is no list of numbers"),
        (_run, {"gpus": True}, "gpus: True is no list of numbers"),
        (_run, {"gpus": [3]}, r"gpus: the run has no activity on GPU 3. Choose from 0, 1."),
        (
            _run,
            {"window": (50, 200)},
            r"5e-08 s to 2e-07 s reaches beyond the recording, which spans 0 s to 1e-07 s",
        ),
        (
            _run,
            {"window": (50, 50)},
            "window: 50 ns to 50 ns does not end after its start. Give the start first.",
        ),
        (
            _run,
            {"kernels": "gemv"},
            r"kernels: none of the 3 kernel names contains 'gemv'. Choose for example 'sgemm",
        ),
        (_two_ranks, {"ranks": [7]}, r"ranks: the run has no rank 7. Choose from 0, 1."),
        (_two_ranks, {"families": ["gems"]}, r"families: 'gems' is unknown. Choose from gemm, "),
        (
            _two_ranks,
            {"families": ["gemm"], "kernels": "soft"},
            r"families: no kernel is of gemm and contains 'soft'",
        ),
        (
            _two_ranks,
            {"families": ["attention"]},
            r"no kernel is of attention. The run has gemm, softmax.",
        ),
    ],
)
def test_what_was_not_recorded_is_refused(
    made: Callable[[], perfkit.Run], choice: dict[str, Any], said: str
) -> None:
    with pytest.raises(PerfkitError, match=said):
        perfkit.select(made(), **choice)


def test_a_gpu_that_was_not_recorded_is_none_to_choose() -> None:
    work = kernels(PLACE | {"gpu": 1}, PLACE | {"gpu": -1})
    run = perfkit.Run([profile(dur_ns=100, KERNELS=work)])
    with pytest.raises(PerfkitError, match=r"on GPU 7\. Choose from 1\."):
        perfkit.select(run, gpus=[7])


def test_family_of_measured_launches_is_judged_from_their_name() -> None:
    run = perfkit.load(sample())
    chosen = perfkit.select(run, families=["gemm"]).launches
    assert 0 < len(chosen) < len(run.launches)
    assert {"gemm"} == {family(str(name)) for name in chosen["full_name"]}


SECOND = 10**9


def _recording(
    name: str, start_s: float, dur_s: float, reader: str = "nsys", **tables: pd.DataFrame
) -> Profile:
    """A profile that was recorded from `start_s` on."""
    return profile(reader, name, 10**18 + int(start_s * SECOND), int(dur_s * SECOND), **tables)


def _log(start_s: float, dur_s: int) -> Profile:
    """The power of a GPU, read once a second."""
    return _recording(
        "gpu.csv", start_s, dur_s, "nvidia_smi", SAMPLES=samples(power_w=[9.0] * (dur_s + 1))
    )


def _far_apart() -> perfkit.Run:
    """A timeline of 20 s, a log of a minute that begins 200 s later, and a trace two hours later."""
    work = kernels({"start_ns": SECOND, "dur_ns": 9 * SECOND})
    step = kernels({"start_ns": SECOND // 10, "dur_ns": SECOND // 10})
    trace = _recording("trace.json", 7800, 0.2, "torch_trace", KERNELS=step, OPS=OPS.empty())
    return perfkit.Run([_recording("run.sqlite", 0, 20, KERNELS=work), trace, _log(200, 60)])


def test_a_window_lies_inside_of_a_capture() -> None:
    run = _far_apart()
    for window in ((100, 150), (10, 30), (199, 220), (5, 250)):
        with pytest.raises(
            PerfkitError, match="reaches into a time at which nothing was recorded"
        ) as refused:
            perfkit.select(run, window=[edge * SECOND for edge in window])
        assert (
            "0 s to 20 s (run.sqlite), 0 s to 0.2 s (trace.json), 200 s to 260 s (gpu.csv)"
            in str(refused.value)
        )
    for start, end in ((0, 20), (5, 6), (210, 250)):  # a log alone is enough
        assert (start * SECOND, end * SECOND) == perfkit.select(
            run, window=[start * SECOND, end * SECOND]
        ).window
    with pytest.raises(
        PerfkitError, match=r"beyond the recording, which spans 0 s to 19\.6314021 s"
    ):
        perfkit.select(perfkit.load(sample()), window=(100 * SECOND, 200 * SECOND))


@pytest.mark.parametrize("window", [(45, 100), (50, 60)])
def test_a_window_after_all_work_of_the_gpus_is_refused(window: tuple[int, int]) -> None:
    with pytest.raises(PerfkitError, match=r"GPUs starts at 0 s, the last one ends at 4\.5e-08 s"):
        perfkit.select(_run(), window=window)


def test_a_window_in_which_the_chosen_gpu_has_ended_is_refused() -> None:
    with pytest.raises(PerfkitError, match="holds no recorded data of a GPU"):
        perfkit.select(_run(), gpus=[0], window=(20, 40))


def test_a_window_in_which_another_chosen_gpu_works_is_one() -> None:
    assert (20, 40) == perfkit.select(_run(), window=(20, 40)).window


def test_a_window_between_two_operations_is_one() -> None:
    assert (32, 38) == perfkit.select(_run(), window=(32, 38)).window


def test_a_window_with_readings_of_a_gpu_is_one() -> None:
    run = perfkit.Run(
        [
            *_run().profiles,
            profile("nvidia_smi", dur_ns=100, SAMPLES=samples(at=[60], power_w=[1.0])),
        ]
    )
    assert (50, 70) == perfkit.select(run, window=(50, 70)).window


def test_a_window_long_before_the_work_is_refused(profiles: Path) -> None:
    run = perfkit.load(profiles / "nsys" / MFU)
    with pytest.raises(
        PerfkitError, match=r"0 s to 1 s holds no recorded data.*starts at 60\.1\d+ s"
    ):
        perfkit.select(run, window=(0, SECOND))


def test_a_window_inside_what_the_captures_state_reads_only_operations_of_gpus() -> None:
    run, read = _run(), []
    held = run.profiles[0]
    loaders = {
        name: lambda name=name, load=load: (read.append(name), load())[1]
        for name, load in held.loaders.items()
    }
    run = perfkit.Run([replace(held, loaders=loaders)])
    assert (10, 20) == perfkit.select(run, window=(10, 20)).window
    assert {"KERNELS", "COPIES"} == {*read}
    assert {"sgemm_tn"} == {
        *perfkit.select(run, window=(5, 20), kernels="sgemm", gpus=[0]).kernels["name"]
    }
    with pytest.raises(
        PerfkitError, match="reaches beyond the recording, which spans 0 s to 1e-07 s"
    ):
        perfkit.select(run, window=(10, 101))


def test_the_gpu_is_not_said_to_be_idle_where_only_a_log_was_recorded() -> None:
    view = perfkit.select(_far_apart(), window=(210 * SECOND, 250 * SECOND))
    assert not {"idle_frac", "device_busy_frac"} & set(diagnosis.figures(view))
    assert "no timeline of the GPU was recorded during all of the window" in {
        refusal.reason for refusal in diagnosis.refusals(view)
    }
    inside = diagnosis.figures(perfkit.select(_far_apart(), window=(0, 20 * SECOND)))
    assert 0.55 == pytest.approx(inside["idle_frac"].value)


def test_captures_that_lie_far_apart_have_clocks_of_their_own() -> None:
    # What the framework's profiler recorded two hours later begins near 0.
    run = _far_apart()
    assert [SECOND // 10] == perfkit.select(run).framework.kernels["start_ns"].tolist()
    assert [SECOND] == perfkit.select(run).kernels["start_ns"].tolist()
    (note,) = [
        note
        for note in run.notes
        if "a clock of its own: equal times are not the same moment" in note
    ]
    assert note.startswith("trace.json: recorded 2 h 10 min after run.sqlite")
    assert run.is_on_one_clock  # of its ranks: the trace is of the same one


def test_the_judged_part_of_a_trace_with_a_clock_of_its_own_is_its_own_loop() -> None:
    begun = range(10 * SECOND, 20 * SECOND, SECOND)  # a loop after a start-up of ten seconds
    timeline = kernels(
        *({"start_ns": at, "dur_ns": SECOND // 2, "name": "gemm"} for at in (0, *begun))
    )
    step = kernels({"start_ns": SECOND // 10, "dur_ns": SECOND // 10})
    trace = _recording("trace.json", 7800, 0.2, "torch_trace", KERNELS=step, OPS=OPS.empty())
    judged = diagnosis.judged(
        perfkit.select(perfkit.Run([_recording("run.sqlite", 0, 20, KERNELS=timeline), trace]))
    )
    assert judged.window == (10 * SECOND, 19 * SECOND + SECOND // 2)
    assert judged.framework.window is None


def test_a_log_over_all_captures_keeps_them_on_one_clock() -> None:
    work, later = (
        kernels({"start_ns": 0, "dur_ns": SECOND}),
        kernels({"start_ns": 5, "dur_ns": SECOND}),
    )
    parts = [
        _recording("a.sqlite", 0, 2, KERNELS=work),
        _recording("b.sqlite", 7200, 2, KERNELS=later),
    ]
    run = perfkit.Run([*parts, _log(-10, 8000)])
    assert [10 * SECOND, 7210 * SECOND + 5] == run.kernels["start_ns"].tolist()
    assert "idle_frac" not in diagnosis.figures(
        perfkit.select(run, window=(100 * SECOND, 200 * SECOND))
    )
    # A trace that began within the timeline keeps its place on it.
    trace = _recording("trace.json", 5, 1, "torch_trace", KERNELS=work, OPS=OPS.empty())
    run = perfkit.Run([_recording("run.sqlite", 0, 20, KERNELS=work), trace])
    assert [5 * SECOND] == perfkit.select(run).framework.kernels["start_ns"].tolist()


def test_ranks_on_one_clock_are_measured_over_the_time_of_the_run() -> None:
    # Rank 1 computes 3 s of 9 s, and its last call ends after 6 s. An hour apart, nobody waits for anybody.
    works = [kernels({"start_ns": 0, "dur_ns": dur * SECOND}) for dur in (9, 3)]
    call = api_calls({"start_ns": 5 * SECOND, "dur_ns": SECOND, "name": "cudaMemcpy"})
    first = _recording("a.sqlite", 0, 20, KERNELS=works[0])
    others = (
        _recording("b.sqlite", start, 20, KERNELS=works[1], API_CALLS=call) for start in (0, 3600)
    )
    near, far = (perfkit.select(perfkit.Run([first, other])) for other in others)
    assert {0: (0, 9 * SECOND), 1: (0, 6 * SECOND)} == near.measured
    found, unknown = (diagnosis.figures(view) for view in (near, far))
    assert found["idle_frac"].value == pytest.approx(3 / 15)
    assert unknown["idle_frac"].value == 0
    assert "no common clock" in unknown["span_ns"].definition
    assert [0, 0] == far.run.kernels["start_ns"].tolist()
    assert (True, False) == (near.run.is_on_one_clock, far.run.is_on_one_clock)
    assert (True, False) == tuple("rank_imbalance_frac" in figures for figures in (found, unknown))


@pytest.mark.parametrize(
    ("begun_s", "dur_s", "measured_s"),
    [
        (0, 10, (0, 10)),  # 4 s before the GPU begins, 2 s after it ends
        (0, 6, (2, 8)),  # the CPU runs ahead, and its step takes longer than the GPU works
        (4, 4, None),  # as long as the GPU works
        (6, 3, None),  # shorter
    ],
)
def test_a_run_is_measured_over_its_marked_step_where_that_lasts_longer(
    begun_s: int, dur_s: int, measured_s: tuple[int, int] | None
) -> None:
    work = kernels({"start_ns": 4 * SECOND, "dur_ns": 4 * SECOND})
    step = {"start_ns": begun_s * SECOND, "dur_ns": dur_s * SECOND, "name": "ProfilerStep#1"}
    last = {"start_ns": (begun_s + dur_s) * SECOND - 1, "dur_ns": 1, "name": "report"}
    recording = _recording("a.sqlite", 0, 20, KERNELS=work, RANGES=ranges(step, last))
    measured = perfkit.select(perfkit.Run([recording])).measured
    if measured_s is None:
        assert measured is None
    else:
        assert measured == {0: pytest.approx([edge * SECOND for edge in measured_s], abs=1)}


def test_what_follows_the_last_event_in_a_marked_step_is_not_measured() -> None:
    work = kernels({"start_ns": 4 * SECOND, "dur_ns": 4 * SECOND})
    step = {"start_ns": 0, "dur_ns": 20 * SECOND, "name": "ProfilerStep#1"}
    last = {"start_ns": 9 * SECOND, "dur_ns": 1, "name": "report"}
    recording = _recording("a.sqlite", 0, 20, KERNELS=work, RANGES=ranges(step, last))
    view = perfkit.select(perfkit.Run([recording]))
    assert {0: (0, 9 * SECOND)} == view.measured
    # A window that a person chose keeps its edges.
    chosen = perfkit.select(view.run, window=(0, 8 * SECOND))
    assert ((0, 8 * SECOND), {}) == (chosen.measured, chosen.stepped)


def test_no_figure_uses_a_share_above_1_that_a_tool_wrote(profiles: Path) -> None:
    extras.require("ncu_report")
    run = perfkit.load(profiles / "ncu/MgMap__Hyper-Spec-M__profile.ncu-rep")
    column = "achieved_occupancy_frac"
    assert 1.04715 == pytest.approx(run.launches[column].max(), abs=1e-5)
    assert 1 >= perfkit.select(run).launches[column].max()
    above = int((run.launches[column] > 1).sum())
    assert above == len(run.launches) - perfkit.select(run).launches[column].notna().sum()
    assert any(
        f"LAUNCHES: {above} of" in note and "no figure uses them" in note for note in run.notes
    )


def test_the_same_choice_is_the_same_selection_while_anyone_holds_it() -> None:
    """What was worked out of it is then there; another choice is another object, and nobody holds one for ever."""
    run = _run()
    view = perfkit.select(run, gpus=[1])
    assert view is perfkit.select(run, gpus=(1,))
    assert perfkit.select(run) is not view
    lost = ref(perfkit.select(run, gpus=[0]))
    assert lost() is None
