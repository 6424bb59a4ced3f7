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


def test_a_job_of_known_hours_costs_its_price() -> None:
    """1,000 in all, of which 400 idle; a tenth of all is 100."""
    said = cost(
        priced(
            job_idle_cost_per_h=4.0,
            job_tenth_cost_per_h=1.0,
            job_whole_cost_count=1000.0,
            job_whole_idle_cost_count=400.0,
        )
    )
    assert "The whole job costs 1,000.00, 400.00 of it while the GPUs are idle" in said
    assert said.endswith("A run that is 10 % shorter saves 100.00.")


def test_a_job_whose_idle_time_is_unknown_has_a_price_all_the_same() -> None:
    said = cost(priced(job_tenth_cost_per_h=1.0, job_whole_cost_count=1000.0))
    assert said.startswith("The whole job costs 1,000.00, in the currency of your price.")


def test_without_a_price_one_sentence_says_how_to_give_it() -> None:
    busy = {"device_busy_frac": Figure("device_busy_frac", "", 0.5, "1", "", "")}
    assert "--price-per-gpu-hour" in cost(busy)


def test_a_recording_without_the_time_of_a_gpu_asks_for_no_price() -> None:
    assert "" == cost({})
