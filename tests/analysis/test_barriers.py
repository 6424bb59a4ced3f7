"""Where threads of OpenMP wait for one another, and where threads sleep: by hand, and against a sum over the tree."""

from pathlib import Path

import pytest
from callpaths import call_metrics, calltree

import perfkit
from perfkit.analysis.calltree.paths import ASLEEP, calls, regions

LAMMPS = "hpctoolkit/HPCToolkit__hpcviewer.e4__lmp-openmp-database"
TREE = calltree(
    {"node": 1, "name": "main thread"},
    {"node": 2, "parent": 1, "name": "first_region", "module": "/app/solver"},
    {
        "node": 3,
        "parent": 2,
        "name": "gomp_team_barrier_wait_end",
        "module": "/lib/libgomp.so.1.0.0",
    },
    {"node": 4, "parent": 3, "name": "do_spin", "module": "/lib/libgomp.so.1.0.0"},
    {"node": 5, "parent": 1, "name": "second_region", "module": "/app/solver"},
    {"node": 6, "parent": 5, "name": "<omp barrier wait>", "module": "/lib/libomp.so"},
    {"node": 7, "parent": 1, "name": "epoll_wait [libc-2.28.so]", "module": "/lib/libc-2.28.so"},
)
SPENT = {1: 10.0, 2: 4.0, 3: 3.0, 4: 3.0, 5: 4.0, 6: 1.0, 7: 2.0}
METRICS = call_metrics(*((node, "REALTIME", "s", value, 0.0) for node, value in SPENT.items()))


def test_waiting_belongs_to_the_function_of_the_program_around_it() -> None:
    found = regions(TREE, METRICS, metric="REALTIME")
    rows = list(zip(found["name"], found["inclusive"], found["share_frac"], strict=True))
    assert [("first_region", 3.0, 0.3), ("second_region", 1.0, 0.1)] == rows


def test_sleep_is_known_by_the_call() -> None:
    found = calls(TREE, METRICS, metric="REALTIME", pattern=ASLEEP)
    assert [0.2] == found["share_frac"].tolist()


def test_barriers_of_a_real_program(profiles: Path) -> None:
    run = perfkit.load(profiles / LAMMPS)
    found = regions(run.calltree, run.call_metrics, metric="REALTIME")
    assert 83.61 == pytest.approx(found["inclusive"].sum(), abs=0.01)
