"""The views of step 1: ceilings, bandwidth and trainings of what is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from megatron import training
from sampled import devices
from viewed import Chooser, chosen, recorded, sentences, specs, still, title, values

import perfkit
from perfkit.diagnosis import machine
from perfkit.errors import PerfkitError
from perfkit.format import Shown as Table
from perfkit.run import Run
from perfkit.widgets import views
from perfkit.widgets.live import Live, Shown, bundle

H100 = "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log"
NETWORKED = "nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log"
MEGATRON = "superbench__megatron_deepspeed.log"
SECOND = 1_000_000_000


def medians(run: Run, **choice: Any) -> list[float]:
    """The step times of the first log, ms."""
    return [step / 1e6 for step in machine.trainings(chosen(run, ranks=[0], **choice))["step_ns"]]


@pytest.fixture
def logs(tmp_path: Path) -> Run:
    """The same training on 1 and on 4 GPUs: a log each, ranks 0 and 1."""
    training(tmp_path / "one.log", gpus=1, ms=400)
    training(tmp_path / "two.log", gpus=4, ms=500, batch=32)
    return perfkit.load(tmp_path)


def tables(view: Shown) -> str:
    """The text of a view's tables."""
    return "".join(bundle(part)["text/html"] for part in view.parts if isinstance(part, Table))


def test_machine_of_a_benchmark(profiles: Path) -> None:
    """An H100 SXM: 989.4 TFLOP/s and 3.35 TB/s by its data sheet, and typical operations under both."""
    view = still(views.machine(chosen(perfkit.load(profiles / "monitor" / H100))))
    assert ["The GPU is NVIDIA H100 80GB HBM3."] == sentences(view)
    assert "989 TFLOP/s" in tables(view)
    assert "3.35 TB/s" in tables(view)
    (roofline,) = specs(view)
    assert title(roofline).startswith("Memory limits")


def test_machine_of_several_kinds_asks_for_a_choice() -> None:
    """Ceilings are of one kind of GPU."""
    (said,) = still(views.machine(chosen(recorded(DEVICES=devices("A100", "H100"))))).parts
    assert str(said).startswith("The run has GPUs of several kinds (A100, H100)")


def test_collectives_of_a_benchmark(profiles: Path) -> None:
    """The all-reduce of eight H100 at 482 GB/s lies above NVLink's 450 GB/s: the log says 482.27 at best."""
    view = still(views.collectives(chosen(perfkit.load(profiles / "monitor" / H100))))
    (picture,) = specs(view)
    assert title(picture).startswith("All-reduce reaches 482 GB/s")
    assert values(picture, "least")["rate"].max() == pytest.approx(482.27, abs=0.005)
    assert ["Line rate: NVLink of NVIDIA H100 80GB HBM3, one direction, as its data sheet says."] == sentences(view)
    assert "Bus bandwidth of the largest messages" in repr(view)


def test_collectives_of_a_log_without_times(profiles: Path) -> None:
    """NCCL's log has the paths alone; of a rank that it does not have nothing is left, which is said."""
    run = perfkit.load(profiles / "monitor" / NETWORKED)
    view = still(views.collectives(chosen(run)))
    assert [] == specs(view)
    assert "NET" in tables(view)
    nowhere = perfkit.Selection(run, (7,), (), None, "")
    (said,) = sentences(still(views.collectives(nowhere)))
    assert said.startswith("No collectives in what is chosen (rank 7")


def test_training_of_a_log(profiles: Path) -> None:
    """Five iterations of which the log says 75,984.3 ms for the first: each is a point, their median in the title."""
    view = still(views.training(chosen(perfkit.load(profiles / "monitor" / MEGATRON))))
    (drawn,) = specs(view)
    rows = values(drawn, "median")
    assert 5 == len(rows)
    assert rows["time"].is_monotonic_increasing
    assert title(drawn) == "The median iteration takes 75.2 s, the first 76.0 s"
    assert any(said.startswith("What share of the peak it uses cannot be told") for said in sentences(view))


def test_training_on_several_numbers_of_gpus(logs: Run) -> None:
    """8 samples in 0.4 s on one GPU, 32 in 0.5 s on four: 80 % of four times as many, from medians 404 and 504 ms."""
    points, scaling = specs(still(views.training(chosen(logs))))
    assert {"log 0", "log 1"} == set(values(points, "log")["log"])
    assert "80" in title(scaling)


def test_training_of_one_log(logs: Run) -> None:
    """Ranks choose the log; how it scales cannot be told of one."""
    view = still(views.training(chosen(logs, ranks=[1])))
    (drawn,) = specs(view)
    assert title(drawn).startswith("The median iteration takes 504 ms, the first 1.50 s")
    assert any(said.startswith("How the training scales takes logs") for said in sentences(view))


def test_a_window_leaves_out_the_first_iterations(logs: Run) -> None:
    """The median of the last two of 403, 404 and 405 ms; the others are drawn fainter. None is left: a sentence."""
    view = still(views.training(chosen(logs, ranks=[0], window=(5 * SECOND, 8 * SECOND))))
    (drawn,) = specs(view)
    assert [0.3, 0.3, 0.3, 1.0, 1.0] == values(drawn, "shade")["shade"].tolist()
    assert title(drawn).startswith("The median iteration takes 404 ms")
    assert [404.5] == medians(logs, window=(5 * SECOND, 8 * SECOND))
    (said,) = sentences(still(views.training(chosen(logs, window=(SECOND, SECOND + 1)))))
    assert said.startswith("No iterations in what is chosen")


def test_live_views_follow(logs: Run) -> None:
    """Another log is drawn when another rank is chosen."""
    explorer = Chooser(selection=chosen(logs, ranks=[0]))
    live = views.training(explorer)
    assert isinstance(live, Live)
    for rank in (1, 0):
        explorer.selection = part = chosen(logs, ranks=[rank])
        assert repr(Shown(live.parts)) == repr(still(views.training(part)))


def test_peaks_that_cannot_be_read_are_a_sentence(logs: Run, tmp_path: Path) -> None:
    """A wrong path is told like anything else that stands in the way."""
    missing = str(tmp_path / "none.csv")
    (said,) = sentences(still(views.machine(chosen(logs), peaks=missing)))
    assert missing in said
    with pytest.raises(PerfkitError):
        perfkit.hardware.load_peaks(missing)
