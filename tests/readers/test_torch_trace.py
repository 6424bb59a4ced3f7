"""PyTorch traces: forms, recognition, cuts and damage (made files)."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from readers import torch_files as made
from readers.torch_files import Write, every_form

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import torch_trace
from perfkit.readers.torch_trace import stream
from perfkit.readers.torch_trace.events import _crossing, nesting
from perfkit.readers.torch_trace.stream import Text
from perfkit.tables import TABLES

CUT = "the file ends before its trace does"


def tables(profile: Profile) -> dict[str, pd.DataFrame]:
    return {name: profile.table(name) for name in TABLES if name != "CAPTURE"}


def is_cut(profile: Profile) -> bool:
    return any(CUT in note for note in profile.notes)


@every_form
def test_every_form_is_claimed_read_and_cut_alike(write: Write, tmp_path: Path) -> None:
    expected = torch_trace.read(made.printed(tmp_path / "printed.json", made.sample()))
    found = torch_trace.read(write(tmp_path / "trace.json", made.sample()))
    assert not is_cut(found)
    assert {
        "KERNELS",
        "COPIES",
        "API_CALLS",
        "OPS",
        "RANGES",
        "SAMPLES",
        "COLLECTIVES",
        "DEVICES",
    } < set(found.loaders)
    for name, frame in tables(found).items():
        pd.testing.assert_frame_equal(expected.table(name), frame, check_exact=True)
    # The header is longer than what is looked at.
    long = {
        "schemaVersion": 1,
        "distributedInfo": {"pg_config": ["group"] * 20_000},
        **made.trace(made.op("a", 1, 1)),
    }
    assert torch_trace.sniff(write(tmp_path / "long.json", long))
    bare = {
        "traceEvents": [made.event("Kernel", "k", 1, 1, 0, "stream 7")],
        "distributedInfo": {"rank": 1},
    }
    assert torch_trace.sniff(write(tmp_path / "bare.json", bare))
    # Whatever a killed job left gives the events that were whole, with a note; without one it is an error.
    path = write(tmp_path / "trace.json", made.sample())
    whole, (full, _) = path.read_bytes(), outcome(path)
    seen = set()
    for size in range(1, len(whole), 181):
        path.write_bytes(whole[:size])
        rows, words = outcome(path)
        refused = (
            f"^{re.escape(str(path))}: the file is cut (before its first whole event|or damaged)"
        )
        assert re.search(refused if rows < 0 else CUT, words)
        seen.add(rows)
    assert {-1, 0, full} <= seen


@every_form
@pytest.mark.parametrize("size", [40, 777])
def test_blocks_of_any_size_give_the_same(
    write: Write, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ['},{"ph":"X"', 'a "quoted" one', "back\\slash", 'both\\"', "\\\\", "täst\n\t", "]}]}"]
    nested = {
        "Input Dims": [[1, {"ph": "X"}, {"name": "x"}], [2, {"ts": 1}]],
        "Call stack": '},\n{"name": "',
    }
    events = [made.op(names[i % len(names)] + str(i), 3.5 * i, 2.25, **nested) for i in range(40)]
    trace = {**made.trace(*events, cuda_runtime_version=11080), "late": [{"id": 1}, {"name": "x"}]}
    path = write(tmp_path / "trace.json", trace)
    expected = torch_trace.read(path)
    monkeypatch.setattr(Text.__init__, "__defaults__", (size,))
    monkeypatch.setattr(stream, "NEAR_END", 2 * size)
    found = torch_trace.read(path)
    assert not is_cut(found)
    assert "CUDA 11.8" == found.capture["tool_version"].iloc[0]
    assert sorted({event["name"] for event in events}) == sorted(found.table("OPS")["name"])
    for name, frame in tables(found).items():
        pd.testing.assert_frame_equal(expected.table(name), frame, check_exact=True)
    # While a long event comes, few chunks are looked through; the last event may come with the end of the text.
    path = write(
        path, made.trace(made.op("long", 1, 9, text="event " * 1500), made.op("last", 20, 1))
    )
    assert 2 == len(torch_trace.read(path).table("OPS"))


def test_events_without_a_form_leave_the_others_alone(tmp_path: Path) -> None:
    sample = made.sample()
    expected = torch_trace.read(made.printed(tmp_path / "plain.json", sample))
    odd = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": [1],
            "args": {"name": "python"},
        },  # no category, a strange process
        {"ph": "B", "cat": "cpu_op", "name": "of another writer", "ts": "soon"},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "bp": "e"},
        made.event("cuda_profiler_range", "range", 105, 1, metric=0.5),
        made.event("cuda_sync", "Stream Wait Event", 105, 1, device="all"),
        {
            key: value for key, value in made.memory(120.0, 4096).items() if key != "cat"
        },  # as in 2021
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "Iteration Start",
            "s": "g",
            "args": {"Device Id": "none"},
        },
    ]
    events = [event for pair in zip(odd * 9, sample["traceEvents"], strict=False) for event in pair]
    events += sample["traceEvents"][len(odd) * 9 :]
    found = torch_trace.read(made.printed(tmp_path / "odd.json", {**sample, "traceEvents": events}))
    ranges = events.count(odd[3])
    assert (
        f"categories that no table holds are left out ({ranges} cuda_profiler_range)"
        in "\n".join(found.notes)
    )
    assert len(expected.table("SAMPLES")) + 2 * events.count(odd[5]) == len(found.table("SAMPLES"))
    for name, frame in tables(expected).items():
        if name != "SAMPLES":
            pd.testing.assert_frame_equal(frame, found.table(name), check_exact=True)


def test_sorted_ends_find_the_spans_around_as_a_stack_does() -> None:
    random, plain = np.random.default_rng(0), 0
    for _ in range(400):
        process, thread, start, dur = random.integers(
            0, [[2], [2], [9], [6]], (4, random.integers(0, 9))
        )
        found = nesting(process, thread, start, dur)
        process, thread, start, last = (
            v[found.order] for v in (process, thread, start, start + dur)
        )
        fresh = np.ones(len(start), bool)
        fresh[1:] = (np.diff(process) != 0) | (np.diff(thread) != 0)
        by_stack = _crossing(found.order, start, last, fresh)
        for one in ("parent", "depth", "crossing"):
            assert getattr(by_stack, one).tolist() == getattr(found, one).tolist()
        plain += not found.crossing.any()
    assert 100 < plain < 400


def test_keys_marks_and_cuts(tmp_path: Path) -> None:
    sample = made.sample()
    late = {
        "inner": {"traceEvents": []},
        "traceEvents": sample.pop("traceEvents"),
        "INFO": [{"id": 1}, {"ph": "x"}],
        "username": "u",
        **sample,
    }
    found = torch_trace.read(made.printed(tmp_path / "late.json", late))
    assert (0, "CUDA 12.4") == (found.rank, found.capture["tool_version"].iloc[0])
    assert made.BASE + 99_500 == found.capture["t0_unix_ns"].iloc[0]
    text = b"\xef\xbb\xbf" + json.dumps(made.sample()).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text[:500]) + gzip.compress(text[500:]) + bytes(10))
    assert torch_trace.sniff(path)
    assert 2 == len(torch_trace.read(path).table("KERNELS"))
    # What Kineto and Python write for a quotient by zero is not JSON, and refuses no trace.
    text = made.printed(
        tmp_path / "trace.json", made.trace(made.kernel("k", 1, 2, share=0.125))
    ).read_text()
    for number in ("NaN", "-inf", "N/A"):
        path.write_text(text.replace("0.125", number))
        assert ["k"] == torch_trace.read(path).table("KERNELS")["full_name"].tolist()
    path = tmp_path / "trace.json"
    text = json.dumps(made.trace(made.op("a", 1, 1), made.op("b", 2, 1)))
    # After the last whole event are a comma, a blank and 30 bytes of another event.
    path.write_text(text[: text.index(', {"ph": "X", "cat": "cpu_op", "name": "b"') + 32])
    rows, words = outcome(path)
    assert 1 == rows
    assert "30 bytes of what follows are dropped" in words


def outcome(path: Path) -> tuple[int, str]:
    """Number of operators, -1 if the file is refused, and the notes or the message."""
    try:
        found = torch_trace.read(path)
    except ReadError as e:
        return -1, str(e)
    return len(found.table("OPS")), "\n".join(found.notes)


def test_values_of_a_wrong_type_are_refused(tmp_path: Path) -> None:
    for changes, words in [
        ({"name": 5}, "Expected `str`, got `int`"),
        *(
            ({"ts": "soon"}, "a time is '\"soon\"', not a number"),
            ({"ts": None}, "a time is 'null', not a number"),
        ),
        ({"dur": 1e300}, "which is no time of a recording"),
        ({"args": {"grid": "all"}}, "Expected `array | null`, got `str`"),
    ]:
        with pytest.raises(ReadError, match=f"trace.json: .*{re.escape(words)}"):
            made.read(tmp_path, made.kernel("a", 1, 1), {**made.kernel("k", 1, 1), **changes})
    path = tmp_path / "trace.json"
    text = json.dumps(made.trace(made.op("a", 1, 1, deep="HERE"))).encode()
    for tail, words in (
        (b', "INFO": oops}', "what follows the events is not JSON"),
        (b"} and more", "what follows the events is not JSON"),
        # JSON's parsers take the last of two keys: the events of the other list would be lost without a word.
        (
            b', "traceEvents": []}',
            r"trace\.json: the trace is damaged .* \(it has traceEvents twice\)",
        ),
    ):
        path.write_bytes(text.removesuffix(b"}") + tail)
        with pytest.raises(ReadError, match=words):
            torch_trace.read(path)
    # Bytes changed within the packed text fail its check.
    path = made.packed(tmp_path / "trace.json.gz", made.sample())
    whole = bytearray(path.read_bytes())
    whole[-6] ^= 1
    path.write_bytes(whole)
    with pytest.raises(
        ReadError, match=r"trace.json.gz: the gzip stream is damaged \(.*Copy the file again"
    ):
        torch_trace.read(path)


EPOCH = 1_700_000_000_000_000  # us


def test_events_and_numbers_that_cannot_be(tmp_path: Path) -> None:
    # It would be zero or end of all tables: it is left out and counted.
    for ts, dur in [(0, 5), (EPOCH, 1_600_000_000_000_000)]:
        kinds = ("cpu_op", "kernel", "python_function")
        near = [made.event(kind, "near", EPOCH + i, 5) for i in range(3) for kind in kinds]
        profile = made.read(tmp_path, *near, made.event("kernel", "far", ts, dur))
        assert 7_000 == profile.capture["dur_ns"].item()
        for table in ("OPS", "KERNELS", "PYTHON_CALLS"):
            assert [0, 1_000, 2_000] == profile.table(table)["start_ns"].tolist()
        noted = (
            "events more than ten years before or after most others, or as long, are left out (1)"
        )
        assert noted in profile.notes
    for number in [-5, 2**31, 2**70]:
        kernel = {**made.kernel("k", 1, 5), "pid": number, "args": {}}
        copy = {
            **made.copy("Memcpy PtoP", 2, 5),
            "args": {"inDevice": 0, "fromDevice": number, "toDevice": 0},
        }
        profile = made.read(tmp_path, kernel, copy)
        assert ([-1], [-1]) == (
            profile.table("KERNELS")["gpu"].tolist(),
            profile.table("COPIES")["peer_gpu"].tolist(),
        )


@pytest.mark.parametrize("place", ["between", "text"])
def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some kilobytes of gzip hold megabytes of blanks or letters: reading stops at the limit, wherever they stand."""
    monkeypatch.setattr(stream, "MOST", 1 << 20)
    whole = json.dumps(made.trace(made.op("a", 1, 2), made.op("b", 3, 2))).encode()
    marks = {"between": b', {"ph"', "text": b'"b", "pid"'}
    at = whole.rindex(marks[place]) + (place == "text")
    path = tmp_path / "trace.json.gz"
    path.write_bytes(
        gzip.compress(whole[:at] + (b"a" if place == "text" else b" ") * (8 << 20) + whole[at:], 9)
    )
    assert path.stat().st_size < 1 << 15
    with pytest.raises(
        ReadError, match=r"trace\.json\.gz: its \d+ bytes unpack to more than \d+, as no trace does"
    ):
        torch_trace.read(path)


OTHERS: dict[str, Any] = {
    "execution trace": {
        "schema": "1.0.2-chakra.0.0.4",
        "pid": 1,
        "time": "now",
        "nodes": [{"id": 1, "name": "x"}],
    },
    "another program's Chrome trace": {
        "traceEvents": [{"ph": "X", "cat": "xla", "name": "fusion", "ts": 1, "dur": 1}]
    },
    "a summary of a trace": {
        "schemaVersion": 1,
        "device": {"deviceProperties": [made.DEVICE]},
        "cat": "kernel",
    },
    "events without an object": made.sample()["traceEvents"],
    "no events": {"traceEvents": []},
}


def test_other_json_is_not_claimed(tmp_path: Path) -> None:
    """Only an object with Kineto's own keys at its first level, or with events of its categories, is a trace."""
    path = tmp_path / "other.json"
    for kind, other in OTHERS.items():
        for indent in (None, 2):
            path.write_text(json.dumps(other, indent=indent))
            assert torch_trace.sniff(path) is False, kind
    # The error names an execution trace, or the keys that were found: Kineto's header alone is no trace.
    head = r"without traceEvents \(its keys: 'schemaVersion', 'deviceProperties'\)"
    for other, words in (
        (OTHERS["execution trace"], "an execution trace of Chakra"),
        ({"schemaVersion": 1, "deviceProperties": []}, head),
        (
            {"one": 1, "two": {"three": 3}},
            r"not a PyTorch profiler trace \(keys: 'one', 'two'\).*export_chrome_trace",
        ),
    ):
        path.write_text(json.dumps(other))
        with pytest.raises(ReadError, match=f"^{re.escape(str(path))}: .*{words}"):
            perfkit.load(path)
