"""What idle time costs, on the first page."""

from perfkit.diagnosis.finding import Figure
from perfkit.report.first_page import cost


def priced(**values: float) -> dict[str, Figure]:
    return {id: Figure(id, "", value, "1/h", "", "") for id, value in values.items()}


def test_idle_time_costs_per_day_and_per_month() -> None:
    """2 an hour: 48 a day, 1,440 in 30 days; a tenth of all GPUs at 0.5 an hour: 360 a month."""
    said = cost(priced(job_idle_cost_per_h=2.0, job_tenth_cost_per_h=0.5))
    assert "Idle time costs 48.00 a day and 1,440.00 a month" in said
    assert said.endswith("A run that is 10 % shorter saves 360.00 a month.")


def test_without_a_price_one_sentence_says_how_to_give_it() -> None:
    busy = {"device_busy_frac": Figure("device_busy_frac", "", 0.5, "1", "", "")}
    assert "--price-per-gpu-hour" in cost(busy)


def test_a_recording_without_the_time_of_a_gpu_asks_for_no_price() -> None:
    assert "" == cost({})
