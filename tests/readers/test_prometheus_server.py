"""A real Prometheus server scrapes exporters that replay dcgm-exporter's text: what is fetched is what was replayed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from prometheus import INTERVAL_S, Exporter, ask, serving, wait_for
from readers import dcgm_files

import perfkit
from perfkit.cli import main
from perfkit.errors import ReadError
from perfkit.readers.dcgm import fetch

SCRAPES = 5
BLANK = "9223372036854775794"


def page(host: str, i: int) -> list[str]:
    """A scrape whose values change with i, and one that the GPU does not support."""
    blank = [dcgm_files.line("DCGM_FI_DEV_MEMORY_TEMP", dcgm_files.labels(gpu, host), BLANK) for gpu in range(2)]
    pod = dcgm_files.labels(0, host, pod="trainer-7f", namespace="team-a")
    return [*dcgm_files.page(host=host, i=i), *blank, dcgm_files.line("DCGM_FI_DEV_SM_CLOCK", pod, 1200 + i)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that has stored some scrapes of two hosts."""
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        Exporter(lambda i: page("node2", i)) as first,
        Exporter(lambda i: page("node10", i)) as second,
        serving(folder, first, second) as address,
    ):
        wait_for(address, 'DCGM_FI_DEV_GPU_UTIL{gpu="0"}', SCRAPES)
        yield address


def stored(address: str, name: str, host: str) -> tuple[np.ndarray, list[float]]:
    """Times in s and values of GPU 0 as the server stored them, which it says itself."""
    points = ask(address, f'{name}{{gpu="0",Hostname="{host}"}}[1m]')[0]["values"]
    return np.array([t for t, _ in points]), [float(v) for _, v in points]


def test_the_server_stored_what_was_replayed(server: str) -> None:
    """Utilisation is 50, 51, ... in the order of the scrapes: the oracle of the other tests is itself right."""
    _, values = stored(server, "DCGM_FI_DEV_GPU_UTIL", "node2")
    assert [50.0 + i for i in range(len(values))] == values


@pytest.mark.parametrize(
    ("name", "metric", "scale"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", "gpu_busy_frac", 0.01),
        ("DCGM_FI_DEV_POWER_USAGE", "power_w", 1.0),
        ("DCGM_FI_PROF_SM_ACTIVE", "sm_active_frac", 1.0),
        ("DCGM_FI_DEV_FB_USED", "memory_used_bytes", 2.0**20),
        ("DCGM_FI_DEV_SM_CLOCK", "sm_clock_hz", 1e6),
    ],
)
@pytest.mark.parametrize(("rank", "host"), [(0, "node2"), (1, "node10")])
def test_fetched_values_are_those_stored(
    server: str, name: str, metric: str, scale: float, rank: int, host: str, tmp_path: Path
) -> None:
    """At every point of the range stands the last scrape before it, of each host; node2 comes before node10."""
    times, values = stored(server, name, host)
    start, end, step = times[0], times[-1], INTERVAL_S / 2
    run = perfkit.load(fetch(server, start, end, step, tmp_path / "gpus.json"))
    found = run.samples.query(f"rank == {rank} and gpu == 0 and metric == '{metric}'")
    at = run.profiles[0].capture["t0_unix_ns"].iloc[0] / 1e9 + found["time_ns"].to_numpy() / 1e9
    asked = start + step * np.arange(round((end - start) // step) + 1)
    assert asked == pytest.approx(at, abs=1e-3)  # times are stored in ms
    before = np.searchsorted(times, asked + 1e-6, side="right") - 1
    assert [values[i] * scale for i in before] == pytest.approx(found["value"].tolist())


def test_what_is_blank_is_missing_and_private_labels_are_not_kept(server: str, tmp_path: Path) -> None:
    """The memory's temperature, which the GPU does not support, is no number; pods and namespaces are not stored."""
    times, _ = stored(server, "DCGM_FI_DEV_GPU_UTIL", "node2")
    path = fetch(server, times[0], times[-1], 1, tmp_path / "gpus.json")
    run = perfkit.load(path)
    assert "memory_temperature_c" not in set(run.samples["metric"])
    assert any("values are missing" in note for note in run.notes)
    assert "trainer-7f" not in path.read_text()
    assert "team-a" not in path.read_text()
    assert ["NVIDIA A100-SXM4-80GB"] * 4 == run.devices["name"].tolist()


def test_one_host_can_be_asked_for(server: str, tmp_path: Path) -> None:
    """A label matcher of the caller is added to the query."""
    times, _ = stored(server, "DCGM_FI_DEV_GPU_UTIL", "node2")
    path = fetch(server, times[0], times[-1], 1, tmp_path / "gpus.json", match='Hostname="node10"')
    assert {0} == set(perfkit.load(path).samples["rank"])
    assert "node2" not in path.read_text()


def test_the_command_records(server: str, tmp_path: Path) -> None:
    """`perfkit record prometheus` writes a file that `perfkit inspect` reads; the end is now if it is not given."""
    start = str(time.time() - 5)
    out = tmp_path / "new" / "gpus.json"
    arguments = ["record", "prometheus", server, "--start", start, "--step", "0.25", "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert (0, f"{out}\n") == (result.exit_code, result.output)
    assert "samples" in CliRunner().invoke(main, ["inspect", str(out)]).output


def test_a_range_without_gpus_names_the_metrics_there(server: str, tmp_path: Path) -> None:
    """Nothing is written, and the error says what there is."""
    now = time.time()
    with pytest.raises(ReadError, match=r"no GPU metric .* where job=\"none\" \(metrics there: DCGM_FI_DEV_ENFORCED"):
        fetch(server, now - 60, now, 1, tmp_path / "gpus.json", match='job="none"')
    with pytest.raises(ReadError, match=r"1970-01-02 .*metrics there: none\)"):
        fetch(server, 86_400, 86_460, 1, tmp_path / "gpus.json")
    assert [] == list(tmp_path.iterdir())


def test_what_the_server_refuses_is_said(server: str, tmp_path: Path) -> None:
    """Prometheus's own words about a matcher that is none."""
    with pytest.raises(ReadError, match=r"Prometheus refused the query .*parse error"):
        fetch(server, 0, 60, 1, tmp_path / "gpus.json", match="Hostname==")


def test_more_points_than_a_query_may_have(server: str, tmp_path: Path) -> None:
    """20,001 points need three queries: every point since the first scrape is there, once."""
    times, values = stored(server, "DCGM_FI_DEV_FB_USED", "node2")
    end = times[-1]
    path = fetch(server, end - 200, end, 0.01, tmp_path / "gpus.json", match='Hostname="node2",gpu="0"')
    result = json.loads(path.read_text())["data"]["result"]
    used = next(one["values"] for one in result if one["metric"]["__name__"] == "DCGM_FI_DEV_FB_USED")
    at = np.array([t for t, _ in used])
    assert times[0] <= at[0] < times[0] + 0.011
    assert np.diff(at) == pytest.approx(0.01, abs=1e-6)
    assert {float(v) for _, v in used} == set(values)
