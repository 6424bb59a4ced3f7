"""The ledger of a log: how long each GPU was in each state, by hand."""

from pathlib import Path

import pandas as pd
import pytest
from sampled import SECOND, devices, samples, together

import perfkit
from perfkit.logs.monitoring.states import last_work, ledger

FULL = [1.0, 1.0, 1.0, 1.0]


def spent(*logs: pd.DataFrame, **options: object) -> dict[tuple[int, str], int]:
    """The ms of each GPU in each state."""
    table = ledger(together(*logs), devices(), **options)  # type: ignore[arg-type]
    rows = table[["gpu", "state", "ns"]].itertuples(index=False)
    return {(gpu, str(state)): ns * 1000 // SECOND for gpu, state, ns in rows}


def test_a_reading_is_work_for_its_share_of_the_time() -> None:
    assert {(0, "working"): 2500, (0, "idle"): 1500} == spent(
        samples(gpu_busy_frac=[1.0, 0.0, 0.5, 1.0])
    )


def test_before_the_first_and_after_the_last_work_a_gpu_is_not_idle() -> None:
    log = samples(gpu_busy_frac=[0.0, 0.04, 1.0, 0.0, 1.0, 0.0])
    expected = {"not started": 2000, "working": 2000, "idle": 1000, "ended": 1000}
    assert {(0, state): ms for state, ms in expected.items()} == spent(log)


def test_a_gpu_that_never_works_is_idle() -> None:
    assert {(0, "idle"): 3000} == spent(samples(gpu_busy_frac=[0.0, 0.02, 0.0]))


def test_a_gpu_beside_one_that_works_is_unused() -> None:
    found = spent(samples(gpu_busy_frac=FULL), samples(gpu=1, gpu_busy_frac=[0.0] * 4))
    assert {(0, "working"): 4000, (1, "unused"): 4000} == found


def test_a_gpu_whose_memory_a_program_holds_is_idle_and_not_unused() -> None:
    busy = samples(gpu_busy_frac=FULL, memory_used_bytes=[40e9] * 4)
    beside = samples(gpu=1, gpu_busy_frac=[0.0] * 4, memory_used_bytes=[30e9] * 4)
    assert {(0, "working"): 4000, (1, "idle"): 4000} == spent(busy, beside)


def test_a_gpu_whose_memory_a_program_held_once_is_idle_and_not_unused() -> None:
    busy = samples(gpu_busy_frac=FULL, memory_used_bytes=[40e9] * 4)
    beside = samples(gpu=1, gpu_busy_frac=[0.0] * 4, memory_used_bytes=[14e9, 0, 0, 0])
    assert {(0, "working"): 4000, (1, "idle"): 4000} == spent(busy, beside)


def test_a_gpu_that_another_one_waits_for_is_idle_and_not_unused() -> None:
    waits = samples(gpu_busy_frac=FULL, power_w=[100] * 4, power_limit_w=[400] * 4)
    found = spent(waits, samples(gpu=1, gpu_busy_frac=[0.0] * 4))
    assert {(0, "little power"): 4000, (1, "idle"): 4000} == found


def test_little_power_needs_full_utilisation() -> None:
    log = samples(gpu_busy_frac=[1.0, 0.5, 1.0], power_w=[100, 100, 300], power_limit_w=[400] * 3)
    expected = {(0, "little power"): 1000, (0, "working"): 1500, (0, "idle"): 500}
    assert expected == spent(log)


def test_a_gpu_lowered_by_power_below_its_own_limit_is_capped() -> None:
    log = samples(
        gpu_busy_frac=FULL,
        power_w=[150, 299, 299, 299],
        power_limit_w=[300] * 4,
        throttled_power_frac=[1, 1, 0, 0],
    )
    expected = {(0, "capped"): 1000, (0, "lowered by power"): 1000, (0, "working"): 2000}
    assert expected == spent(log)


def test_heat_comes_before_power_and_power_before_other_reasons() -> None:
    log = samples(
        gpu_busy_frac=FULL,
        throttled_thermal_frac=[1, 0, 0, 0],
        throttled_power_frac=[1, 1, 0, 0],
        throttled_other_frac=[1, 1, 1, 0],
    )
    states = ("lowered by heat", "lowered by power", "lowered by another reason", "working")
    assert {(0, state): 1000 for state in states} == spent(log)


def test_the_limit_of_the_data_sheet_stands_in_for_one_that_was_not_recorded() -> None:
    log = samples(gpu_busy_frac=[1.0], power_w=[100])
    table = ledger(log, devices("NVIDIA A100-SXM4-80GB"))
    assert [("little power", 0.25)] == list(zip(table["state"], table["power_frac"], strict=True))


def test_clocks_are_held_against_the_recorded_maximum() -> None:
    log = samples(gpu_busy_frac=[1.0, 1.0], sm_clock_hz=[1.4e9, 1.6e9], sm_max_clock_hz=[2e9, 2e9])
    assert 0.75 == pytest.approx(ledger(log, devices())["clock_frac"].item())


def test_a_gpu_without_its_utilisation_has_no_row() -> None:
    assert 0 == len(ledger(samples(power_w=[100, 200]), devices()))


def test_a_single_reading_has_shares_and_no_duration() -> None:
    table = ledger(samples(gpu_busy_frac=[0.75]), devices())
    assert [0.75, 0.25] == table["share_frac"].tolist()
    assert table["dur_ns"].isna().all()


def test_only_the_gpu_with_several_readings_has_durations() -> None:
    log = together(samples(gpu_busy_frac=[1.0, 1.0]), samples(gpu=1, gpu_busy_frac=[1.0]))
    table = ledger(log, devices()).set_index("gpu")["dur_ns"]
    assert 2 * SECOND == table[0]
    assert table.isna()[1]


def test_the_last_work_of_a_gpu_ends_with_its_reading() -> None:
    log = together(
        samples(gpu_busy_frac=[1.0, 0.0, 0.5, 0.0]), samples(gpu=1, gpu_busy_frac=[0.0] * 4)
    )
    table = last_work(log)
    assert [(0, 3 * SECOND)] == list(zip(table["gpu"], table["end_ns"], strict=True))


def test_a_window_chooses_readings() -> None:
    log = samples(gpu_busy_frac=[0.0, 0.0, 1.0, 1.0])
    assert {(0, "working"): 2000} == spent(log, window=(2 * SECOND, 4 * SECOND))


@pytest.mark.parametrize(
    "name",
    [
        "monitor/tkjunsei__OpenAD__gpu_usage_2xA6000.csv",
        "monitor/smi_query__rtx4090_training_run.csv",
        "reports/one_gpu_power_capped/gpu.csv",
        "reports/spinning_gpus/gpu.csv",
    ],
)
def test_states_of_a_gpu_add_up_to_its_readings_exactly(profiles: Path, name: str) -> None:
    run = perfkit.load(profiles / name)
    log = run.samples[run.samples["metric"] == "gpu_busy_frac"]
    table = ledger(run.samples, run.devices)
    for gpu, of in log.groupby("gpu"):
        step = of["time_ns"].diff().dropna()
        read = int(of["time_ns"].max() - of["time_ns"].min() + step.quantile(interpolation="lower"))
        assert read == table.loc[table["gpu"] == gpu, "ns"].sum()
