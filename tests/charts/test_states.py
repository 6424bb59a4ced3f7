"""The stacked bars of the states of GPUs."""

from charts.checking import checked, title
from sampled import devices, samples, together

from perfkit.logs.charts.states import states
from perfkit.logs.monitoring import ledger
from perfkit.tables import SAMPLES


def test_the_title_names_the_work_and_the_largest_rest() -> None:
    busy = samples(gpu_busy_frac=[1.0, 1.0, 0.5, 1.0])
    found = ledger(together(busy, samples(gpu=1, gpu_busy_frac=[0.0] * 4)), devices())
    assert "GPUs work 43.8 % of the time; unused 50.0 %" == title(states(found))


def test_a_single_reading_shows_no_time() -> None:
    spec = str(checked(states(ledger(samples(gpu_busy_frac=[1.0]), devices()))))
    assert "none: one reading" in spec
    assert "until the next one" not in spec


def test_a_log_without_utilisation_says_what_to_record() -> None:
    spec = checked(states(ledger(SAMPLES.empty(), devices())))
    assert "utilization.gpu" in str(spec)
