"""Pauses of the GPU in which state is saved: what makes one, what looks like one and is none, and what it held."""

from typing import Any

import pandas as pd
import pytest
from frames import api_calls, copies, kernels, lasting, os_calls, python_calls, ranges, tuples
from ops import op

from perfkit.analysis import steps
from perfkit.analysis.checkpoints import CHECKPOINTS, SAVING, WRITING, detect

MS = 1_000_000
MB = 1_000_000
STEP, PAUSE, STEPS, AFTER = 12 * MS, 100 * MS, 12, (3, 7)


def program(
    *, saved: int = 64 * MB, loss: int = 4
) -> tuple[dict[str, pd.DataFrame], list[tuple[int, int]]]:
    """Twelve steps of 10 ms of work and 2 ms without, a loss copied in each; after the 4th and the 8th 100 ms more.

    At the beginning of these pauses `saved` bytes are copied to the host in 20 ms. Returns tables and pauses.
    """
    work, moved, calls, spans, pauses, now = [], [], [], [], [], 0
    for number in range(STEPS):
        begin = now
        work.append(lasting(now, 10 * MS, correlation=number))
        calls.append(lasting(now, 1, correlation=number))
        moved.append(lasting(now + 10 * MS, 1_000, direction="D2H", bytes=loss))
        now += STEP
        if number in AFTER:
            moved.append(lasting(now, 20 * MS, direction="D2H", bytes=saved))
            pauses.append((now - 2 * MS, PAUSE + 2 * MS))
            now += PAUSE
        spans.append(lasting(begin, now - begin, f"step {number}"))
    tables = {"kernels": kernels(*work), "copies": copies(*moved), "api_calls": api_calls(*calls)}
    return {**tables, "ranges": ranges(*spans)}, pauses


def found(
    tables: dict[str, pd.DataFrame], window: tuple[int, int] | None = None, **more: Any
) -> pd.DataFrame:
    """The checkpoints of tables, with what else is given."""
    tables = {"python_calls": python_calls(), "os_calls": os_calls(), **tables, **more}
    known = steps.detect(tables["ranges"], tables["kernels"])
    plain = [tables.pop(name) for name in ("kernels", "copies", "api_calls")]
    return CHECKPOINTS.check(detect(*plain, **tables, steps=known, window=window))


def named(
    name: str, pauses: list[tuple[int, int]], tables: dict[str, pd.DataFrame]
) -> pd.DataFrame:
    """The ranges of the program with another in each pause, but its first 12 ms."""
    inside = [lasting(start + 12 * MS, dur - 12 * MS, name) for start, dur in pauses]
    rows = tables["ranges"][["start_ns", "dur_ns", "name"]].to_dict("records")
    return ranges(*rows, *({**row, "depth": 1} for row in inside))


def test_pauses_inside_a_range_that_saves() -> None:
    # torch.save in a trace with stacks is as good as a range. A pause is found on the whole recording and cut
    # to the window.
    tables, pauses = program()
    saving = tables | {"ranges": named("save_checkpoint", pauses, tables)}
    columns = ["start_ns", "dur_ns", "named_ns", "written_ns", "bytes", "step", "witness", "name"]
    rest = 90 * MS, 0, 64 * MB + 4
    expected = [
        (*pause, *rest, step, "range", "save_checkpoint")
        for pause, step in zip(pauses, AFTER, strict=True)
    ]
    assert expected == tuples(found(saving), *columns)
    cut = found(saving, (pauses[0][0] - 5 * MS, pauses[1][0] + 50 * MS))
    assert [start for start, _ in pauses] == cut["start_ns"].tolist()
    assert 50 * MS == cut["dur_ns"].iloc[1]
    calls = [op("torch/serialization.py(944): save", start, start + dur) for start, dur in pauses]
    assert ["range", "range"] == found(tables, python_calls=python_calls(*calls))[
        "witness"
    ].tolist()


def test_pauses_in_which_files_are_written() -> None:
    # A thread that launches nothing may write while the GPU waits for something else.
    tables, pauses = program(saved=0)
    for name, each, times, more in (
        ("write", 60, 2, {}),
        ("fsync", 60, 2, {}),
        ("write", 51, 2, {}),  # half of a pause of 102 ms is enough
        *(
            ("write", 50, 0, {}),
            ("write", 60, 0, {"rank": 1}),
            ("poll", 60, 0, {}),
            ("read", 60, 0, {}),
        ),
    ):
        half = each * MS // 2
        calls = [
            op(name, at, at + half, **more) for start, _ in pauses for at in (start, start + half)
        ]
        rows = found(tables, os_calls=os_calls(*calls))
        assert [("file", each * MS)] * times == tuples(rows, "witness", "written_ns")
    calls = os_calls(*(op("write", start, start + dur, thread=9) for start, dur in pauses))
    assert found(tables, os_calls=calls).empty
    without = tables | {"api_calls": api_calls()}
    assert ["file", "file"] == found(without, os_calls=calls)["witness"].tolist(), (
        "who launches is not known"
    )


def test_long_rare_pauses_after_large_copies_look_like_it() -> None:
    # Not the loader that begins again, or results that are evaluated on the host. A pause after 1 MB is too little for
    # a state, and after 64 MB where each step copies 10 MB back it is usual.
    tables, pauses = program()
    assert [("copies", "")] * 2 == tuples(found(tables), "witness", "name")
    for name in ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter", "validation", "run eval"):
        assert found(tables | {"ranges": named(name, pauses, tables)}).empty, name
    assert found(program(saved=MB)[0]).empty
    assert found(program(loss=10 * MB)[0]).empty


@pytest.mark.parametrize(("back", "count"), [(0, 2), (31 * MB, 2), (32 * MB + 2, 0)])
def test_what_comes_back_to_the_gpu_is_not_saved(back: int, count: int) -> None:
    """At the end of each pause half of the 64 MB and the loss come back, as from an optimizer on the CPU."""
    tables, pauses = program()
    at_end = [
        lasting(start + dur - 20 * MS, 10 * MS, direction="H2D", bytes=back)
        for start, dur in pauses
    ]
    rows = tables["copies"][["start_ns", "dur_ns", "direction", "bytes"]].to_dict("records")
    assert count == len(found(tables | {"copies": copies(*rows, *at_end)}))


def test_a_pause_that_outlasts_the_run_is_no_checkpoint() -> None:
    """After the second save nothing happens for a thousand times as long as the run took until then."""
    tables, pauses = program()
    end = sum(pauses[1])
    last = {name: table["start_ns"] >= end for name, table in tables.items()}
    long = 1_000 * end
    later = {n: t.assign(start_ns=t["start_ns"] + long * last[n]) for n, t in tables.items()}
    assert [pauses[0][0]] == found(later)["start_ns"].tolist()
    saved = lasting(pauses[1][0], pauses[1][1] + long, "save_checkpoint", depth=1)
    spans = ranges(*later["ranges"].to_dict("records"), saved)
    assert 2 == len(found(later | {"ranges": spans})), "but where a range says so"


def test_once_and_warm_up_are_not_enough_to_look_like_it() -> None:
    tables, pauses = program()
    early = {name: frame[frame["start_ns"] < pauses[1][0]] for name, frame in tables.items()}
    assert found(early).empty
    assert 1 == len(found(early | {"ranges": named("save", pauses[:1], early)}))
    # A first step that compiles for 100 ms, and copies 64 MB back, is not steady.
    tables, _ = program(saved=0)
    moved = {n: table["start_ns"] + PAUSE * (table["start_ns"] > 0) for n, table in tables.items()}
    later = {n: table.assign(start_ns=moved[n]) for n, table in tables.items()}
    first = later["ranges"]["name"] == "step 0"
    later["ranges"] = later["ranges"].assign(dur_ns=later["ranges"]["dur_ns"] + PAUSE * first)
    rows = later["copies"][["start_ns", "dur_ns", "direction", "bytes"]].to_dict("records")
    big = lasting(15 * MS, 20 * MS, direction="D2H", bytes=64 * MB)
    assert found(later | {"copies": copies(big, *rows)}).empty


def test_a_range_around_work_is_none() -> None:
    tables, pauses = program(saved=0)
    whole = lasting(0, int(tables["ranges"]["dur_ns"].sum()), "train, then save model")
    assert SAVING.search(str(whole["name"]))
    again = named("torch/utils/checkpoint.py(90): CheckpointFunction", pauses, tables)
    for spans in (ranges(*tables["ranges"].to_dict("records"), whole), again):
        assert found(tables | {"ranges": spans}).empty
    for dur, is_one in (
        (204, True),
        (205, False),
    ):  # at least half of it has to lie in a pause, of 102 ms
        saving = lasting(pauses[1][0], dur * MS, "save", depth=1)
        spans = ranges(*tables["ranges"].to_dict("records"), saving)
        assert is_one is not found(tables | {"ranges": spans}).empty


def test_names_that_save_and_write() -> None:
    # Functions as nsys lists them in real captures: opening, reading and waiting is not writing.
    saves = [
        *("save_checkpoint", "Saving the model", "trainer.save_model", "write_ckpt", "checkpoint"),
        "[Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end",
        "torch/distributed/checkpoint/state_dict_saver.py(80): save",
    ]
    others = [
        *(
            "load_checkpoint",
            "aten::save_for_backward",
            "checkpointed_forward",
            "savefig",
            "step 3",
        ),
        "torch/distributed/checkpoint/state_dict_loader.py(60): load",
    ]
    assert saves == [name for name in [*saves, *others] if SAVING.search(name)]
    calls = "open64 fopen write fwrite fsync fflush fclose read fread poll munmap ioctl pwrite64 pthread_cond_wait"
    writing = ["write", "fwrite", "fsync", "fflush", "fclose", "pwrite64"]
    assert writing == [name for name in calls.split() if WRITING.match(name)]


def test_state_saved_after_the_last_kernel_is_a_checkpoint_as_far_as_the_gpu_works() -> None:
    """A copy of 20 ms ends the work of the rank, and a range around it says that state is saved."""
    tables, _ = program()
    begun = STEPS * STEP + len(AFTER) * PAUSE
    copied = lasting(begun, 20 * MS, direction="D2H", bytes=64 * MB)
    moved = pd.concat([tables["copies"], copies(copied)], ignore_index=True)
    rows = named("save_checkpoint", [(begun - 12 * MS, 90 * MS)], tables)
    last = found({**tables, "copies": moved, "ranges": rows}).tail(1)
    assert [(begun - 2 * MS, 22 * MS, "range")] == tuples(last, "start_ns", "dur_ns", "witness")


def test_a_copy_at_the_end_alone_is_no_checkpoint() -> None:
    tables, _ = program(saved=0)
    copied = lasting(STEPS * STEP + len(AFTER) * PAUSE, 20 * MS, direction="D2H", bytes=64 * MB)
    moved = pd.concat([tables["copies"], copies(copied)], ignore_index=True)
    assert found({**tables, "copies": moved}).empty
