"""A selection filters every table alike, and refuses what was not recorded."""

from __future__ import annotations

from pathlib import Path
from weakref import ref

import pandas as pd
import pytest
from frames import api_calls, copies, kernels
from readers import hpctoolkit_files

import perfkit
from perfkit import diagnosis
from perfkit.errors import PerfkitError
from perfkit.names.families import family
from perfkit.profile import Profile
from perfkit.report.notebooks import sample
from perfkit.tables import CAPTURE, OPS, SAMPLES

PLACE = {"start_ns": 0, "dur_ns": 10}


def _capture() -> pd.DataFrame:
    """A recording of 100 ns."""
    return CAPTURE.make(
        pd.DataFrame(
            {"rank": [0], "tool": ["t"], "tool_version": [""], "path": ["p"], "t0_unix_ns": [None], "dur_ns": [100]}
        )
    )


def _run() -> perfkit.Run:
    """Two GPUs, 0 to 100 ns: gemm on both, softmax and a copy on GPU 1."""
    on = kernels(
        {"start_ns": 0, "dur_ns": 10, "gpu": 0, "name": "sgemm_tn"},
        {"start_ns": 5, "dur_ns": 10, "gpu": 1, "name": "sgemm_nt"},
        {"start_ns": 20, "dur_ns": 10, "gpu": 1, "name": "Softmax<float>"},
    )
    moved = copies({"start_ns": 40, "dur_ns": 5, "gpu": 1})
    return perfkit.Run([Profile("nsys", Path("p"), _capture(), {"KERNELS": lambda: on, "COPIES": lambda: moved})])


def test_gpus_choose_rows_of_every_gpu_table() -> None:
    """GPU 1 has two kernels and one copy."""
    view = perfkit.select(_run(), gpus=[1])
    assert (2, 1) == (len(view.kernels), len(view.copies))


def test_kernels_match_text_or_pattern_in_any_case() -> None:
    """'softmax' and 'SGEMM_?T' choose by name; what is not chosen is in other_kernels."""
    by_text = perfkit.select(_run(), kernels="softmax")
    by_pattern = perfkit.select(_run(), kernels="SGEMM_?t")
    assert ["Softmax<float>"] == by_text.kernels["name"].tolist()
    assert ["sgemm_nt"] == by_pattern.kernels["name"].tolist()
    assert 2 == len(by_pattern.other_kernels)


def test_nothing_chosen_is_everything() -> None:
    """Without a choice the selection is the run."""
    view = perfkit.select(_run())
    assert (3, 0, None) == (len(view.kernels), len(view.other_kernels), view.window)


def test_the_same_choice_is_the_same_selection_while_anyone_holds_it() -> None:
    """What was worked out of it is then there; another choice is another object, and nobody holds one for ever."""
    run = _run()
    view = perfkit.select(run, gpus=[1])
    assert view is perfkit.select(run, gpus=(1,))
    assert perfkit.select(run) is not view
    lost = ref(perfkit.select(run, gpus=[0]))
    assert lost() is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"gpus": [3]}, r"gpus: the run has no activity on GPU 3. Choose from 0, 1."),
        ({"window": (50, 200)}, r"window: 5e-08 s to 2e-07 s reaches beyond the recording, which spans 0 s to 1e-07 s"),
        ({"window": (50, 50)}, r"window: \[50, 50\] is not a start and a later end"),
        ({"kernels": "gemv"}, r"kernels: none of the 3 kernel names contains 'gemv'. Choose for example 'sgemm"),
    ],
)
def test_what_was_not_recorded_is_refused(choice: dict[str, object], message: str) -> None:
    """A figure of a GPU, time or kernel that is not there would be wrong, not zero."""
    with pytest.raises(perfkit.PerfkitError, match=message):
        perfkit.select(_run(), **choice)  # type: ignore[arg-type]


def test_description_says_what_was_chosen() -> None:
    """The report shows the choice in words."""
    view = perfkit.select(_run(), gpus=[0], window=(0, 50), kernels="sgemm")
    assert "GPU 0, 0 s to 5e-08 s, kernels matching 'sgemm'" == view.description


def test_call_paths_have_no_window(tmp_path: Path) -> None:
    """Their metrics are sums over the run: figures of the whole under the name of a part would be wrong."""
    run = perfkit.load(hpctoolkit_files.sample(tmp_path / "hpctoolkit-app-database"))
    with pytest.raises(PerfkitError, match="window: the metrics of call paths are sums over the whole run"):
        perfkit.select(run, window=(0, 10))


def _profile(rank: int, work: pd.DataFrame, calls: pd.DataFrame) -> Profile:
    """What one rank recorded."""
    return Profile(
        "nsys", Path(f"p{rank}"), _capture(), {"KERNELS": lambda: work, "API_CALLS": lambda: calls}, rank=rank
    )


def _two_ranks() -> perfkit.Run:
    """The same GPU number on two ranks, with a launching call each."""
    found = (
        (0, kernels(PLACE | {"name": "sgemm_tn", "family": "gemm"}), api_calls(PLACE | {"name": "cudaLaunchKernel"})),
        (1, kernels(PLACE | {"name": "softmax", "family": "softmax"}), api_calls(PLACE | {"name": "cuLaunchKernel"})),
    )
    return perfkit.Run([_profile(*one) for one in found])


def test_ranks_choose_rows_of_every_table() -> None:
    """Rank 1 has the softmax and the call that launched it; its GPU 0 is not that of rank 0."""
    view = perfkit.select(_two_ranks(), ranks=[1], gpus=[0])
    assert ["softmax"] == view.kernels["name"].tolist()
    assert ["cuLaunchKernel"] == view.api_calls["name"].tolist()
    assert "rank 1, GPU 0, the whole recording, all kernels" == view.description


def test_families_choose_kernels_and_keep_the_rest_as_others() -> None:
    """Of gemm and softmax the family gemm leaves one, and a name may narrow it further."""
    view = perfkit.select(_two_ranks(), families=["gemm"])
    assert ["sgemm_tn"] == view.kernels["name"].tolist()
    assert ["softmax"] == view.other_kernels["name"].tolist()
    assert 1 == len(perfkit.select(_two_ranks(), families=["gemm"], kernels="tn").kernels)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"ranks": [7]}, r"ranks: the run has no rank 7. Choose from 0, 1."),
        ({"families": ["gems"]}, r"families: 'gems' is unknown. Choose from gemm, "),
        ({"families": ["gemm"], "kernels": "soft"}, r"families: no kernel is of gemm and contains 'soft'"),
        ({"families": ["attention"]}, r"no kernel is of attention. The run has gemm, softmax."),
    ],
)
def test_ranks_and_families_that_are_not_there_are_refused(choice: dict[str, object], message: str) -> None:
    """The refusal names what could be chosen."""
    with pytest.raises(PerfkitError, match=message):
        perfkit.select(_two_ranks(), **choice)  # type: ignore[arg-type]


def test_family_of_measured_launches_is_judged_from_their_name() -> None:
    """LAUNCHES has no family column: those chosen are the ones whose full name is of the family."""
    run = perfkit.load(sample())
    chosen = perfkit.select(run, families=["gemm"]).launches
    assert 0 < len(chosen) < len(run.launches)
    assert {"gemm"} == {family(str(name)) for name in chosen["full_name"]}


def test_a_choice_is_its_own_selection() -> None:
    """A cell takes over the choice of an explorer and of what stands in its place alike."""
    chosen = perfkit.select(perfkit.Run([]))
    assert chosen.selection is chosen


SECOND = 10**9


def _recording(name: str, start_s: float, dur_s: float, reader: str = "nsys", **tables: pd.DataFrame) -> Profile:
    """A profile that was recorded from `start_s` on."""
    row = {"rank": 0, "tool": reader, "tool_version": "", "path": name, "t0_unix_ns": 10**18 + int(start_s * SECOND)}
    capture = CAPTURE.make(pd.DataFrame([{**row, "dur_ns": int(dur_s * SECOND)}]))
    return Profile(reader, Path(name), capture, {key: lambda f=frame: f for key, frame in tables.items()})


def _log(start_s: float, dur_s: int) -> Profile:
    """The power of a GPU, read once a second."""
    times = range(0, dur_s * SECOND + 1, SECOND)
    rows = pd.DataFrame({"rank": 0, "gpu": 0, "time_ns": times, "metric": "power_w", "value": 9.0})
    return _recording("gpu.csv", start_s, dur_s, "nvidia_smi", SAMPLES=SAMPLES.make(rows))


def _far_apart() -> perfkit.Run:
    """A timeline of 20 s, a log of a minute that begins 200 s later, and a trace two hours later."""
    work = kernels({"start_ns": SECOND, "dur_ns": 9 * SECOND})
    step = kernels({"start_ns": SECOND // 10, "dur_ns": SECOND // 10})
    trace = _recording("trace.json", 7800, 0.2, "torch_trace", KERNELS=step, OPS=OPS.empty())
    return perfkit.Run([_recording("run.sqlite", 0, 20, KERNELS=work), trace, _log(200, 60)])


@pytest.mark.parametrize("window", [(100, 150), (10, 30), (199, 220), (5, 250)])
def test_a_window_in_which_nothing_was_recorded_is_refused(window: tuple[float, float]) -> None:
    """Between two captures, and over the edge of one: the GPU was not idle then, it was not looked at."""
    with pytest.raises(PerfkitError, match="reaches into a time at which nothing was recorded") as refused:
        perfkit.select(_far_apart(), window=[int(edge * SECOND) for edge in window])
    assert "0 s to 20 s (run.sqlite), 0 s to 0.2 s (trace.json), 200 s to 260 s (gpu.csv)" in str(refused.value)


def test_a_window_between_captures_of_the_sample_is_refused() -> None:
    """From 100 s to 200 s lies in the hours between the timeline of the sample and its trace."""
    with pytest.raises(PerfkitError, match=r"beyond the recording, which spans 0 s to 19\.6314021 s"):
        perfkit.select(perfkit.load(sample()), window=(100 * SECOND, 200 * SECOND))


@pytest.mark.parametrize("window", [(0, 20), (5, 6), (210, 250)])
def test_a_window_inside_of_any_capture_can_be_chosen(window: tuple[float, float]) -> None:
    """A log alone is enough."""
    edges = [int(edge * SECOND) for edge in window]
    assert tuple(edges) == perfkit.select(_far_apart(), window=edges).window


def test_the_gpu_is_not_said_to_be_idle_where_only_a_log_was_recorded() -> None:
    """From 210 to 250 s power was read and no operation recorded: there are no shares of busy and idle time."""
    view = perfkit.select(_far_apart(), window=(210 * SECOND, 250 * SECOND))
    assert not {"idle_frac", "device_busy_frac"} & set(diagnosis.figures(view))
    assert "no timeline of the GPU was recorded during all of the window" in {
        refusal.reason for refusal in diagnosis.refusals(view)
    }
    inside = diagnosis.figures(perfkit.select(_far_apart(), window=(0, 20 * SECOND)))
    assert 0.55 == pytest.approx(inside["idle_frac"].value)


def test_captures_that_lie_far_apart_have_clocks_of_their_own() -> None:
    """What the framework's profiler recorded two hours later begins near 0, and a note says that it is another time."""
    run = _far_apart()
    assert [SECOND // 10] == perfkit.select(run).framework.kernels["start_ns"].tolist()
    assert [SECOND] == perfkit.select(run).kernels["start_ns"].tolist()
    (note,) = [note for note in run.notes if "a clock of its own: equal times are not the same moment" in note]
    assert note.startswith("trace.json: recorded 2 h 10 min after run.sqlite")
    assert run.is_on_one_clock  # of its ranks: the trace is of the same one


def test_a_log_over_all_captures_keeps_them_on_one_clock() -> None:
    """A log of three hours meets both: nothing lies apart, and the time between is not the GPU's idle time either."""
    work, later = kernels({"start_ns": 0, "dur_ns": SECOND}), kernels({"start_ns": 5, "dur_ns": SECOND})
    parts = [_recording("a.sqlite", 0, 2, KERNELS=work), _recording("b.sqlite", 7200, 2, KERNELS=later)]
    run = perfkit.Run([*parts, _log(-10, 8000)])
    assert [10 * SECOND, 7210 * SECOND + 5] == run.kernels["start_ns"].tolist()
    assert "idle_frac" not in diagnosis.figures(perfkit.select(run, window=(100 * SECOND, 200 * SECOND)))


def test_ranks_on_one_clock_are_measured_over_the_time_of_the_run() -> None:
    """Rank 1 computes 3 s of 9 s, and its last call ends after 6 s: it is idle for 3 s. Far apart, nobody knows."""
    works = [kernels({"start_ns": 0, "dur_ns": dur * SECOND}) for dur in (9, 3)]
    call = api_calls({"start_ns": 5 * SECOND, "dur_ns": SECOND, "name": "cudaMemcpy"})
    near, far = (
        perfkit.select(
            perfkit.Run(
                [
                    _recording("a.sqlite", 0, 20, KERNELS=works[0]),
                    _recording("b.sqlite", start, 20, KERNELS=works[1], API_CALLS=call),
                ]
            )
        )
        for start in (0, 3600)
    )
    assert {0: (0, 9 * SECOND), 1: (0, 6 * SECOND)} == near.measured
    assert diagnosis.figures(near)["idle_frac"].value == pytest.approx(3 / 15)
    assert diagnosis.figures(far)["idle_frac"].value == 0
    assert "no common clock" in diagnosis.figures(far)["span_ns"].definition


def test_ranks_that_lie_far_apart_are_not_compared_in_time() -> None:
    """Two runs of one folder, counted as ranks: nobody waits for anybody, and the imbalance of ranks is no figure."""
    busy = {f"{name}.sqlite": kernels({"start_ns": 0, "dur_ns": dur * SECOND}) for name, dur in (("a", 9), ("b", 3))}
    near, far = (
        perfkit.Run([_recording(name, start * i, 20, KERNELS=frame) for i, (name, frame) in enumerate(busy.items())])
        for start in (0, 3600)
    )
    assert [0, 0] == far.kernels["start_ns"].tolist()
    assert near.is_on_one_clock
    assert not far.is_on_one_clock
    assert "rank_imbalance_frac" in diagnosis.figures(near)
    assert "rank_imbalance_frac" not in diagnosis.figures(far)


def test_captures_of_one_time_stay_on_one_clock() -> None:
    """A trace that began within the timeline keeps its place on it."""
    work = kernels({"start_ns": SECOND, "dur_ns": 9 * SECOND})
    trace = _recording("trace.json", 5, 1, "torch_trace", KERNELS=work, OPS=OPS.empty())
    run = perfkit.Run([_recording("run.sqlite", 0, 20, KERNELS=work), trace])
    assert [6 * SECOND] == perfkit.select(run).framework.kernels["start_ns"].tolist()


def test_no_figure_uses_a_share_above_1_that_a_tool_wrote(profiles: Path) -> None:
    """The run keeps Nsight Compute's occupancy of 104.7 %, a note counts such values, and a selection has none."""
    run = perfkit.load(profiles / "ncu/MgMap__Hyper-Spec-M__profile.ncu-rep")
    column = "achieved_occupancy_frac"
    assert 1.04715 == pytest.approx(run.launches[column].max(), abs=1e-5)
    assert 1 >= perfkit.select(run).launches[column].max()
    above = int((run.launches[column] > 1).sum())
    assert above == len(run.launches) - perfkit.select(run).launches[column].notna().sum()
    assert any(f"LAUNCHES: {above} of" in note and "no figure uses them" in note for note in run.notes)
