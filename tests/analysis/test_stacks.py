"""What the samples of a CPU thread say of when it ran in which function."""

import pandas as pd

from perfkit.analysis.stacks import printing, strip
from perfkit.tables import FRAMES, STACKS

NAMES = {0: "parse", 1: "copy", 2: None}  # by number of the stack


def stacks(*taken: tuple[int, int, int]) -> pd.DataFrame:
    """Samples: thread, moment (ns), stack."""
    frame = pd.DataFrame(taken, columns=["thread", "start_ns", "stack"])
    return STACKS.make(frame.assign(rank=0, process=1, dur_ns=0, kind="sample", cpu=0))


def frames() -> pd.DataFrame:
    rows = [(stack, 0, name, "program", name is not None) for stack, name in NAMES.items()]
    frame = pd.DataFrame(rows, columns=["stack", "depth", "function", "module", "resolved"])
    return FRAMES.make(frame.assign(rank=0))


def found(*taken: tuple[int, int, int]) -> list[tuple[int, int, int, str]]:
    rows = strip(stacks(*taken), frames())
    columns = ("thread", "start_ns", "dur_ns", "name")
    return list(zip(*(rows[column].tolist() for column in columns), strict=True))


def test_equal_functions_one_after_another_are_one_stretch() -> None:
    assert [(7, 0, 20, "parse"), (7, 20, 20, "copy")] == found(
        (7, 0, 0), (7, 10, 0), (7, 20, 1), (7, 30, 1)
    )


def test_a_thread_that_was_not_sampled_did_not_run() -> None:
    taken = [(7, 0, 0), (7, 10, 0), (7, 20, 0), (7, 1000, 0), (7, 1010, 0)]
    assert [(7, 0, 40, "parse"), (7, 1000, 20, "parse")] == found(*taken)


def test_threads_have_stretches_of_their_own_and_what_has_no_name_has_none() -> None:
    assert [(7, 0, 10, "parse"), (8, 10, 10, "copy")] == found((7, 0, 0), (7, 10, 2), (8, 10, 1))
    assert [] == found()


def test_a_function_prints_where_the_library_writes_text_below_it() -> None:
    """Two of three samples in show lie in printf or in a stream; what calls write elsewhere is not below it."""
    held = {
        0: ["__write", "_IO_file_write", "show", "main"],
        1: ["std::ostream::operator<<(double)", "show", "main"],
        2: ["show", "main"],
        3: ["main", "write"],
    }
    rows = [
        (stack, depth, name, "program", True)
        for stack, names in held.items()
        for depth, name in enumerate(names)
    ]
    columns = ["stack", "depth", "function", "module", "resolved"]
    known = FRAMES.make(pd.DataFrame(rows, columns=columns).assign(rank=0))
    taken = stacks((7, 0, 0), (7, 10, 1), (7, 20, 2), (7, 30, 3))
    assert printing(taken, known, "show") == 2 / 3
    assert printing(taken, known, "absent") == 0.0
