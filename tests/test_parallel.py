"""One result whatever the engine and the number of workers, and a name for each source that is not in it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import extras
import pytest

from perfkit.errors import PerfkitError, ReadError
from perfkit.parallel import KILLED, NOT_BEGUN, map_reduce, workers_for

VALUES = [random.Random(7).uniform(-1e9, 1e9) for _ in range(37)]
needs_dask = pytest.mark.skipif(not find_spec("distributed"), reason=extras.reason("distributed"))


def read(value: float) -> float:
    """Take as long as no other source does."""
    time.sleep(random.random() / 500)
    return value


def same(value: float) -> float:
    return value


def added(one: float, other: float) -> float:
    """Return a sum, which for float64 depends on the order."""
    return one + other


def unreadable(number: int) -> int:
    if number % 10 == 3:
        raise ReadError(f"rank {number}: the file is cut.")
    return number


def killing(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def killing_once(mark: Path, number: int) -> int:
    if number == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_the_order_of_merging_is_that_of_the_sources() -> None:
    sums = {
        workers: map_reduce(VALUES, read, same, added, workers=workers).value
        for workers in (1, 2, 8)
    }
    assert 1 == len(set(sums.values()))
    assert sums[1] != sum(VALUES)
    assert (0.5, ()) == (
        map_reduce([0.5], same, same, added).value,
        map_reduce([0.5], same, same, added).refused,
    )
    assert map_reduce([], same, same, added).value is None


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_dask_gives_the_bits_of_one_process() -> None:
    found = map_reduce(VALUES, same, same, added, workers=2, dask="local").value
    assert found == map_reduce(VALUES, same, same, added).value


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_in_another_process_loses_a_worker_and_no_figure(tmp_path: Path) -> None:
    """A source kills its worker, and its nanny starts another one: all sources are read, once each."""
    file = tmp_path / "scheduler.json"
    # Scheduler and workers import this module, as a cluster's image has perfkit.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    program = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    options = ["--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)]
    with subprocess.Popen([*program, *options], **quiet) as scheduler:
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-dashboard"]
        worker += ["--nthreads", "1", "--scheduler-file", str(file)]
        with subprocess.Popen(worker, **quiet) as nanny:
            try:
                end = time.monotonic() + 60
                while not file.exists() and time.monotonic() < end:
                    time.sleep(0.1)
                address = json.loads(file.read_text())["address"]
                read_once = partial(killing_once, tmp_path / "mark")
                result = map_reduce(range(12), read_once, same, added, dask=address)
            finally:
                nanny.terminate()
                scheduler.terminate()
    assert (tmp_path / "mark").exists()
    assert (sum(range(12)), ()) == (result.value, result.refused)


@pytest.mark.skipif(bool(find_spec("distributed")), reason="perfkit[dask] is installed")
def test_dask_is_an_extra() -> None:
    with pytest.raises(PerfkitError, match=r"Install perfkit\[dask\]"):
        map_reduce(VALUES, same, same, added, dask="local")


@pytest.mark.parametrize("workers", [1, 2])
def test_sources_that_cannot_be_read_are_named(workers: int) -> None:
    result = map_reduce(range(20), unreadable, same, added, workers=workers)
    assert result.value == sum(range(20)) - 3 - 13
    found = [(refused.source, refused.reason) for refused in result.refused]
    assert [(3, "rank 3: the file is cut."), (13, "rank 13: the file is cut.")] == found


def test_a_source_that_kills_its_worker_is_named(tmp_path: Path) -> None:
    result = map_reduce(range(12), killing, same, added, workers=2)
    assert result.value == sum(range(12)) - 5
    assert [(5, KILLED)] == [(refused.source, refused.reason) for refused in result.refused]
    again = map_reduce(range(12), partial(killing_once, tmp_path / "mark"), same, added, workers=2)
    assert (sum(range(12)), ()) == (again.value, again.refused)


SLOW = """
import sys, time
from perfkit.parallel import map_reduce

def read(number):
    print("reading", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    map_reduce(range(4), read, int, max, workers=2)
"""


def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    """All that is left of it, the fork server and the resource tracker too, holds its standard output open."""
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, str(tmp_path / "slow.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "reading\n" == process.stdout.readline()
        process.kill()
        rest, _ = process.communicate(timeout=60)
    assert set(rest.split()) <= {"reading"}


UNGUARDED = """
from perfkit.parallel import map_reduce
for refused in map_reduce([1, 2], float, float, max, workers=2).refused:
    print(refused.reason)
"""


def test_a_script_without_a_guard_is_told_why_its_workers_end(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [NOT_BEGUN] * 2 == done.stdout.splitlines()
    assert "" == done.stderr


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BlockingIOError(11, "Resource temporarily unavailable"), "temporarily unavailable"),
        (EOFError(), "the fork server ended"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_a_limit_on_processes_is_told(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a submitted task raises where the system, the fork server or a thread refuses to start."""

    def refuse(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("perfkit.parallel.ProcessPoolExecutor.submit", refuse)
    with pytest.raises(PerfkitError, match=rf"no process can be started \(.*{told}\)\. Raise"):
        map_reduce(range(4), same, same, added, workers=2)


def test_a_program_from_standard_input_reads_in_its_own_process() -> None:
    program = "from perfkit.parallel import map_reduce; print(map_reduce(range(6), float, float, max, workers=2))"
    done = subprocess.run(
        [sys.executable, "-"], input=program, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "Result(value=5.0, refused=())"


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_without_workers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr("perfkit.parallel.ASK_S", 1)
    monkeypatch.setattr("perfkit.parallel.PATIENCE_S", 3)
    with (
        LocalCluster(n_workers=0, dashboard_address=None) as cluster,
        pytest.raises(
            PerfkitError, match=r"no worker for 3 s, and 4 of 4 files are not read\. Start workers"
        ),
    ):
        map_reduce(range(4), same, same, added, dask=cluster.scheduler_address)


def test_the_pool_fits_the_memory() -> None:
    assert 1 == workers_for(1 << 61)
    assert 1 == workers_for(1, workers=1)
    assert workers_for(1) == len(os.sched_getaffinity(0))
