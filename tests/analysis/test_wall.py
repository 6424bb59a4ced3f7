"""The ledger of a call-path profile: its lines add up to the wall time, and paths begin where the time divides."""

import pandas as pd
from callpaths import MAIN, call_metrics, calltree
from frames import tuples

from perfkit.analysis.calltree import wall

NO_PATHS = pd.DataFrame({"rank": [], "name": [], "frac": []})
WORK = wall.Work(wall=100.0, busy=30.0, kernels=20.0, copies=15.0)


def paths(**fracs: float) -> pd.DataFrame:
    return pd.DataFrame({"rank": 0, "name": [*fracs], "frac": [*fracs.values()]})


def lines(found: pd.DataFrame) -> list[tuple[object, ...]]:
    return tuples(found, "kind", "cause", "ns")


def test_kernels_count_before_copies_that_run_beside_them() -> None:
    """The GPU is busy for 30 ns: 20 of kernels leave 10 of the 15 of copies."""
    found = wall.ledger({0: WORK}, NO_PATHS)
    expected = [
        ("computation", "kernel", 20),
        ("copy", "copy", 10),
        ("idle", wall.NOT_RECORDED, 70),
    ]
    assert expected == lines(found)


def test_what_is_neither_kernel_nor_copy_is_a_memset() -> None:
    found = wall.ledger({0: WORK._replace(copies=4.0)}, NO_PATHS)
    assert ("computation", "memset", 6) in lines(found)


def test_paths_share_the_time_without_gpu_work_and_the_main_thread_sleeps_for_the_rest() -> None:
    """Of 70 ns: half is load, three tenths are step, a fifth of the wall time the main thread did not run."""
    found = wall.ledger({0: WORK}, paths(load=0.5, step=0.3))
    idle = found[found["kind"] == "idle"]
    assert {"load": 35, "step": 21} == dict(tuples(idle[idle["owner"].notna()], "owner", "ns"))
    assert [("idle", wall.NOT_RUNNING, 14)] == lines(idle[idle["owner"].isna()])


def test_paths_with_more_cpu_time_than_wall_time_are_scaled_to_it() -> None:
    """Two threads' worth of CPU time, 0.8 and 1.2 of the wall time: 28 and 42 of the 70 ns."""
    found = wall.ledger({0: WORK}, paths(load=0.8, step=1.2))
    idle = found[found["kind"] == "idle"]
    assert [28, 42] == sorted(idle["ns"])


def test_lines_add_up_to_the_wall_time() -> None:
    odd = wall.Work(wall=1001.0, busy=333.3, kernels=100.1, copies=99.9)
    found = wall.ledger({0: odd, 3: WORK}, paths(a=0.333, b=0.334))
    assert {0: 1001, 3: 100} == found.groupby("rank")["ns"].sum().to_dict()


TREE = calltree(
    {"node": 1, "name": MAIN},
    {"node": 2, "parent": 1, "name": "train"},
    {"node": 3, "parent": 2, "name": "load"},
    {"node": 4, "parent": 2, "name": "step"},
    {"node": 5, "parent": 2, "name": "print"},
)


def divided(seconds: dict[int, float]) -> dict[str, float]:
    """The parts of the main thread's time, s, of contexts of TREE by their inclusive time."""
    metrics = call_metrics(*((node, "CPUTIME", "s", value, 0.0) for node, value in seconds.items()))
    found = wall.branches(TREE, metrics, metric="CPUTIME")
    return {str(name): round(float(value), 9) for name, value in tuples(found, "name", "value")}


def test_paths_are_the_callees_where_the_time_divides() -> None:
    """10 s: load 6 s, step 3.8 s; print is under a twentieth and one of the other paths."""
    assert {"load": 6.0, "step": 3.8, "other paths": 0.2} == divided(
        {1: 10.0, 2: 10.0, 3: 6.0, 4: 3.8, 5: 0.2}
    )


def test_the_own_time_of_a_path_stays_with_its_name() -> None:
    """10 s in train, of which 6 s in load and nothing else that it calls: 4 s are its own."""
    assert {"load": 6.0, "train": 4.0} == divided({1: 10.0, 2: 10.0, 3: 6.0})


def test_a_tree_without_a_main_thread_has_no_paths() -> None:
    tree = TREE.assign(entry=TREE["entry"].cat.rename_categories({MAIN: "thread"}))
    metrics = call_metrics((1, "CPUTIME", "s", 10.0, 10.0))
    assert wall.branches(tree, metrics, metric="CPUTIME").empty
