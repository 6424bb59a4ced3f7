"""Tables of several profiles as one: no metric of a GPU told twice, no GPU twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from readers import smi_files as smi
from sampled import SECOND, samples

import perfkit
from perfkit.run import devices, distinct
from perfkit.tables import DEVICES, SAMPLES


def told(frame: pd.DataFrame) -> dict[tuple[int, str], list[float]]:
    """The values of each metric of each GPU."""
    groups = frame.astype({"metric": str}).groupby(["gpu", "metric"])["value"]
    return {key: values.tolist() for key, values in groups}


def test_of_two_tools_at_one_time_that_with_more_readings_is_kept() -> None:
    """Power four times and twice in 4 s: the four; the temperature that only the lesser has stays."""
    less = samples(every=2 * SECOND, power_w=[1, 2], temperature_c=[60, 61])
    more = samples(power_w=[3, 4, 5, 6])
    for frames in ([less, more], [more, less]):
        kept, notes = distinct(frames, ["a", "b"])
        assert {(0, "power_w"): [3, 4, 5, 6], (0, "temperature_c"): [60, 61]} == told(pd.concat(kept))
        first = frames[0] is less
        assert [f"{'ab'[not first]}: power_w left out, {'ba'[not first]} has more readings of the same GPUs"] == notes
        assert all(frame is SAMPLES.check(frame) for frame in kept)


def test_of_equal_ones_the_first_is_kept() -> None:
    """Two of two readings: those of the first file."""
    kept, notes = distinct([samples(power_w=[1, 2]), samples(power_w=[3, 4])], ["a", "b"])
    assert {(0, "power_w"): [1, 2]} == told(pd.concat(kept))
    assert ["b: power_w left out, a has more readings of the same GPUs"] == notes


def test_what_follows_each_other_is_kept() -> None:
    """One tool ran from 0 to 1 s, the other from 5 to 6 s: nothing is told twice."""
    frames = [samples(power_w=[1, 2]), samples(at=[5 * SECOND, 6 * SECOND], power_w=[3, 4])]
    kept, notes = distinct(frames, ["a", "b"])
    assert [2, 2] == [len(frame) for frame in kept]
    assert [] == notes
    assert all(frame is one for frame, one in zip(kept, frames, strict=True))


def test_a_single_reading_gives_way_whenever_it_was_made() -> None:
    """The inventory of an hour before would count for that hour, since a reading holds until the next."""
    alone = samples(at=[-3600 * SECOND], power_w=[60], power_limit_w=[700])
    kept, notes = distinct([alone, samples(power_w=[1, 2])], ["gpus.xml", "dmon.log"])
    assert {(0, "power_limit_w"): [700], (0, "power_w"): [1, 2]} == told(pd.concat(kept))
    assert ["gpus.xml: power_w left out, dmon.log has more readings of the same GPUs"] == notes


def test_devices_and_metrics_are_apart() -> None:
    """Another GPU, another rank and another metric at the same time are no repetition."""
    frames = [samples(power_w=[1, 2]), samples(gpu=1, power_w=[3]), samples(rank=1, power_w=[4]), samples(fan_frac=[1])]
    kept, notes = distinct(frames, ["a", "b", "c", "d"])
    assert [2, 1, 1, 1] == [len(frame) for frame in kept]
    assert [] == notes


def test_many_metrics_are_counted_in_a_note() -> None:
    """Three are named; a table without rows has nothing to leave out."""
    names = ["energy_j", "fan_frac", "power_w", "sm_clock_hz", "temperature_c"]
    once, twice = (samples(**{name: [1.0] * count for name in names}) for count in (1, 2))
    frames = [once, twice, SAMPLES.empty()]
    kept, (note,) = distinct(frames, ["a", "b", "c"])
    assert [0, 10, 0] == [len(frame) for frame in kept]
    assert "a: energy_j, fan_frac, power_w and 2 more left out, b has more readings of the same GPUs" == note


def test_against_a_search_over_all_pairs() -> None:
    """Of made-up series none that is kept meets another of its device, and one that is left out meets a longer one."""
    random = np.random.default_rng(0)

    def made() -> pd.DataFrame:
        times = random.integers(0, 20) + np.arange(random.integers(2, 9))
        return samples(gpu=int(random.integers(3)), at=times.tolist(), power_w=[1.0] * len(times))

    for _ in range(50):
        frames = [made() for _ in range(6)]
        kept, _ = distinct(frames, list("abcdef"))
        assert {0} >= {len(after) for before, after in zip(frames, kept, strict=True) if len(after) != len(before)}
        lengths = [len(frame) for frame in kept]
        spans = [(f["gpu"].iloc[0], f["time_ns"].min(), f["time_ns"].max(), len(f)) for f in frames]
        for i, (gpu, start, end, count) in enumerate(spans):
            beside = [j for j, other in enumerate(spans) if j != i and other[0] == gpu and lengths[j]]
            meeting = [spans[j][3] for j in beside if spans[j][1] <= end and start <= spans[j][2]]
            assert bool(meeting) != bool(lengths[i])
            assert lengths[i] or max(meeting) >= count


def test_a_gpu_that_two_tools_name_is_there_once() -> None:
    """Of the two rows that is kept which knows the memory; another rank's GPU 0 is another."""
    unknown = {"compute_capability": "", "sm_count": None, "memory_bytes_per_s": None, "clock_hz": None}
    rows = [
        {"rank": rank, "gpu": 0, "name": "A100", "memory_bytes": memory, **unknown}
        for rank, memory in ((0, None), (0, 80), (1, None))
    ]
    frame = DEVICES.make(pd.DataFrame(rows, columns=DEVICES.column_names).astype({"memory_bytes": "Int64"}))
    assert [80, None] == [None if pd.isna(n) else n for n in devices(frame)["memory_bytes"]]


def test_energy_of_a_node_is_counted_once(tmp_path: Path) -> None:
    """dmon and a query of one node: power has one series per GPU, the query's limits stay, and a note tells of it."""
    stamps = [("20260101", f"00:00:0{i}") for i in range(6)]
    rows = [(*stamp, *row) for stamp, row in zip(stamps, smi.ticks(6, gpus=1), strict=True)]
    smi.dmon(tmp_path / "dmon.log", *rows, columns=("Date", "Time", *smi.COLUMNS))
    smi.query(tmp_path / "query.csv", *smi.moments(4, gpus=1))
    run = perfkit.load(tmp_path)
    power = run.samples[run.samples["metric"] == "power_w"]
    assert [*range(600, 606)] == power["value"].tolist()
    assert "memory_used_bytes" in set(run.samples["metric"])
    assert (
        "query.csv: gpu_busy_frac, power_w, temperature_c left out, dmon.log has more readings of the same GPUs"
        in run.notes
    )
