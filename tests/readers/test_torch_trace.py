"""PyTorch traces: forms, recognition, cuts and damage, and the tables (made files)."""

import gzip
import json
import random
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from frames import known as rows
from readers import torch_files as made
from readers.torch_files import Write, every_form

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import torch_trace
from perfkit.readers.torch_trace import stream
from perfkit.readers.torch_trace.events import _crossing, nanoseconds, nesting
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


def test_times_processes_and_devices_of_a_trace(tmp_path: Path) -> None:
    # Microseconds with decimals become ns since the first event, the Python function at 99.5 us.
    found = torch_trace.read(made.printed(tmp_path / "trace.json", made.sample()))
    expected = {"KERNELS": [11_000, 56_500], "COPIES": [46_500, 50_000], "OPS": [2_500, 3_501]}
    expected["API_CALLS"] = [4_500, 40_500, 50_500]
    assert expected == {name: found.table(name)["start_ns"].tolist() for name in expected}
    assert [20_125, 10_000] == found.table("KERNELS")["dur_ns"].tolist()
    assert [(made.BASE + 99_500, 95_000)] == rows(found.capture, "t0_unix_ns", "dur_ns")
    # GPU events name the device as their process; with several processes it is not known, which a note says.
    launch = made.call("cudaLaunchKernel", 1, 1, 1)
    one = made.read(tmp_path, launch, made.kernel("a", 2, 1, 1))
    assert [10] == one.table("KERNELS")["process"].tolist()
    two = made.read(tmp_path, launch, {**launch, "pid": 77}, made.kernel("a", 2, 1, 1))
    assert [-1] == two.table("KERNELS")["process"].tolist()
    assert any("several processes made CUDA calls" in note for note in two.notes)
    alone = made.read(tmp_path, made.kernel("a", 1, 1, 4))
    assert any("none of the 1 GPU operations has a call" in note for note in alone.notes)
    # Kernels of device 2 of a node that lists one GPU of AMD's: kept, and without a compute capability.
    listed = [{**made.DEVICE, "name": "", "warpSize": 64}]
    found = made.read(tmp_path, made.kernel("a", 1, 1, device=2), deviceProperties=listed)
    assert [2] == found.table("KERNELS")["gpu"].tolist()
    assert [(0, "")] == rows(found.table("DEVICES"), "gpu", "compute_capability")
    assert any("AMD's number of the device (2)" in note for note in found.notes)
    # Without arguments the process is the device and the thread the stream; beyond int32 it is none.
    bare = {**made.event("kernel", "k", 1, 1, 2, 5), "args": None}
    frame = made.read(tmp_path, bare, made.kernel("k", 2, 1, device=2**40)).table("KERNELS")
    assert {(2, 5), (-1, 7)} == set(rows(frame, "gpu", "stream"))


def test_times_and_clocks(tmp_path: Path) -> None:
    # Ten thousand random times are those of Decimal, halves rounded up.
    dice = random.Random(3)
    texts = [str(dice.randrange(10 ** dice.randrange(1, 16))) for _ in range(10_000)]
    texts = [
        t + (f".{dice.randrange(10**n):0{n}}" if (n := dice.randrange(7)) else "") for t in texts
    ]
    expected = [int((Decimal(t) * 1000).to_integral_value(ROUND_HALF_UP)) for t in texts]
    assert expected == nanoseconds([msgspec.Raw(t.encode()) for t in texts]).tolist()
    # Signs, exponents and parts of a nanosecond, alone and among plain times.
    others = {"-12.5": -12_500, "1e3": 1_000_000, "2.5E-1": 250, "0.00049": 0, "0.0005": 1}
    for text, time in others.items():
        assert [time, 7000] == nanoseconds([msgspec.Raw(text.encode()), msgspec.Raw(b"7")]).tolist()
    # Without a base, times of days are the machine's uptime: t0 is missing, and 0 is the first event.
    found = made.read(tmp_path, made.op("a", 4458676416431.397, 1))
    assert pd.isna(found.capture["t0_unix_ns"].iloc[0])
    assert [0] == found.table("OPS")["start_ns"].tolist()
    # Kineto's conversion of clocks has produced events that end before they start.
    found = made.read(tmp_path, made.kernel("a", 1, -0.5), made.kernel("b", 2, 0))
    assert ["b"] == found.table("KERNELS")["full_name"].tolist()
    assert "events that end before they start are left out (1)" in found.notes
    versions = (
        ({"cuda_runtime_version": 12090}, "CUDA 12.9"),
        ({"hip_runtime_version": 60443483}, "HIP 6.4"),
        ({}, ""),
    )
    for header, version in versions:
        capture = made.read(
            tmp_path, made.op("a", 1, 1), **header
        ).capture  # PyTorch's own version is in no trace
        assert [("PyTorch profiler", version)] == rows(capture, "tool", "tool_version")


@pytest.mark.parametrize("category", ["overhead", "Overhead"])
def test_overhead_of_cupti_is_read(category: str, tmp_path: Path) -> None:
    kinds = {
        "Command Buffer Full": "queue_full",
        "Lazy Function Loading": "loading",
        "Resource": "profiler",
    }
    took = [made.event(category, name, 5 + i, 2, pid=-1, tid=0) for i, name in enumerate(kinds)]
    frame = made.read(tmp_path, made.op("a", 5, 20), *took).table("OVERHEAD")
    assert [*kinds.values()] == frame["kind"].tolist()
    assert [(-1, -1, 0, 2000), (-1, -1, 1000, 2000)] == rows(
        frame, "process", "thread", "start_ns", "dur_ns"
    )[:2]


def test_a_trace_begins_with_the_program_and_not_with_cupti(tmp_path: Path) -> None:
    found = made.read(tmp_path, made.op("a", 50, 10), made.event("overhead", "Resource", 20, 90))
    assert [0] == found.table("OPS")["start_ns"].tolist()
    assert [-30_000] == found.table("OVERHEAD")["start_ns"].tolist()
    assert [10_000] == found.capture["dur_ns"].tolist()


def test_what_no_table_holds_or_is_missing(tmp_path: Path) -> None:
    # A communicator's id of 64 bits; a correlation of 64 bits is none.
    found = made.read(
        tmp_path, made.op("a", 1, 1, **{"Comms Id": 2**64 - 9}), made.kernel("k", 1, 1, 2**64 - 1)
    )
    assert 1 == len(found.table("OPS"))
    assert [-1] == found.table("KERNELS")["correlation"].tolist()
    # Counters of CUPTI are left out with a note; the profiler's own spans and waits without one.
    others = (
        "cuda_profiler_range",
        "cuda_profiler_range",
        "mtia_runtime",
        "Trace",
        "gpu_user_annotation",
    )
    found = made.read(tmp_path, made.op("a", 9, 1), *(made.event(cat, "x", 1, 1) for cat in others))
    assert any("left out (2 cuda_profiler_range, 1 mtia_runtime)" in note for note in found.notes)
    assert 1000 == found.capture["dur_ns"].iloc[0]
    found = made.read(tmp_path, made.op("a", 1, 1), deviceProperties=[])
    told = {missing.table: missing.record for missing in found.missing}
    assert {
        "KERNELS",
        "COPIES",
        "API_CALLS",
        "RANGES",
        "PYTHON_CALLS",
        "SAMPLES",
        "DEVICES",
    } == set(told)
    assert "ProfilerActivity.CUDA" in told["KERNELS"]
    options = {told[table].split("(")[-1][:-1] for table in ("PYTHON_CALLS", "SAMPLES")}
    assert {"with_stack=True", "profile_memory=True"} == options
    # A window in which nothing ran has no tables but the devices, and no length.
    found = made.read(tmp_path)
    assert {"DEVICES"} == set(found.loaders)
    assert 0 == found.capture["dur_ns"].iloc[0]


def test_operators_and_calls(tmp_path: Path) -> None:
    def parents(frame: pd.DataFrame) -> dict[str, str | None]:
        names = dict(zip(frame["op"], frame["name"], strict=True))
        return {
            name: names.get(parent)
            for name, parent in zip(frame["name"], frame["parent"], strict=True)
        }

    # a holds b and d, b holds c: a's own time is 100 - 40 - 20 us; another thread is apart.
    spans = {"a": (0, 100), "b": (10, 40), "c": (20, 10), "d": (60, 20)}
    ops = [made.op(name, *span) for name, span in reversed(spans.items())]
    frame = made.read(tmp_path, *ops, {**made.op("e", 5, 5), "tid": 99}).table("OPS")
    assert [("a", None), ("b", "a"), ("c", "b"), ("d", "a"), ("e", None)] == [
        *parents(frame).items()
    ]
    assert [40_000, 30_000, 10_000, 20_000, 5_000] == frame["self_ns"].tolist()
    assert set(range(5)) == set(frame["op"])
    # b starts where a ends, d crosses the end of c, and a span without length holds nothing.
    spans = {
        "a": (0, 10),
        "b": (10, 5),
        "c": (20, 10),
        "d": (25, 10),
        "e": (26, 2),
        "x": (40, 0),
        "y": (40, 0),
    }
    frame = made.read(tmp_path, *(made.op(name, *span) for name, span in spans.items())).table(
        "OPS"
    )
    assert {**dict.fromkeys(spans), "e": "d"} == parents(frame)
    args = {
        "Input Dims": [[1, 2], []],
        "Input type": ["long int", ""],
        "Input Strides": [[2, 1], []],
    }
    args["Sequence number"] = 3
    frame = made.read(
        tmp_path, made.op("a", 1, 1, **args), made.op("b", 2, 1, **{"Input Dims": []})
    ).table("OPS")
    recorded = ("[[1,2],[]]", '["long int",""]', "[[2,1],[]]", 3)
    assert [recorded, (None, None, None, -1)] == rows(
        frame, "shapes", "dtypes", "strides", "sequence"
    )
    assert any(
        "record_shapes=True" in note for note in made.read(tmp_path, made.op("b", 2, 1)).notes
    )
    calls = [
        made.call("cudaLaunchKernel_v7000", 1, 1, 1),
        made.event("cuda_driver", "cuLaunchKernelEx_ptsz", 2, 1),
    ]
    frame = made.read(tmp_path, *calls).table("API_CALLS")
    assert [("cudaLaunchKernel", 1), ("cuLaunchKernelEx", -1)] == rows(frame, "name", "correlation")


def test_ranges_threads_and_memory(tmp_path: Path) -> None:
    # inner lies in outer; late crosses the end of outer, so both are start_end and enclose nothing.
    spans = {"ProfilerStep#12": (0, 50), "outer": (1, 20), "inner": (2, 5), "late": (15, 20)}
    spans |= {"alone": (40, 5), "in": (41, 1)}
    frame = made.read(
        tmp_path, *(made.event("user_annotation", n, *s) for n, s in spans.items())
    ).table("RANGES")
    assert [
        *(("ProfilerStep#12", "step", 0), ("outer", "start_end", 0), ("inner", "push_pop", 0)),
        *(("late", "start_end", 0), ("alone", "push_pop", 0), ("in", "push_pop", 1)),
    ] == rows(frame, "name", "kind", "depth")
    assert {""} == set(frame["domain"])
    threads = {
        "25738": 25738,
        "thread 12": 12,
        -549452224: -549452224,
        "Spans": -1,
        None: -1,
        7.0: 7,
    }
    frame = made.read(
        tmp_path, *(made.event("cpu_op", "a", i, 1, "p", t) for i, t in enumerate(threads))
    ).table("OPS")
    assert sorted(threads.values()) == frame["thread"].tolist()
    assert {-1} == set(frame["process"])
    # CUDA's and HIP's allocators by device; the CPU's is gpu -1 and reserves nothing.
    events = [
        made.memory(1, 10),
        made.memory(2, 20, 1, kind=6),
        made.memory(3, 30, -1, kind=0),
        made.memory(4, 0),
    ]
    frame = made.read(tmp_path, *events).table("SAMPLES")
    allocated = frame[frame["metric"] == "memory_allocated_bytes"]
    expected = [(-1, 2000, 30.0), (0, 0, 10.0), (0, 3000, 0.0), (1, 1000, 20.0)]
    assert expected == rows(allocated, "gpu", "time_ns", "value")
    assert [0, 0, 1] == frame.loc[frame["metric"] == "memory_reserved_bytes", "gpu"].tolist()


def test_kernels_graphs_and_grids(tmp_path: Path) -> None:
    # 2 x 3 x 4 blocks of 32 x 2 x 1 threads; AMD records none of it.
    bare = made.event("kernel", "bare", 9, 1, 0, 7, device=0, stream=7)
    frame = made.read(tmp_path, made.kernel("a", 1, 2), bare).table("KERNELS")
    columns = ("grid_blocks", "block_threads", "shared_bytes", "registers")
    assert [(24, 64, 1040, 40), (None,) * 4] == rows(frame, *columns)
    # The full name is kept to the letter, also what a page would have to escape.
    gemm = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_nn_align4>(T1::Params)"
    names = [gemm, "<script>alert(1)</script>"]
    frame = made.read(tmp_path, *(made.kernel(name, i, 1) for i, name in enumerate(names))).table(
        "KERNELS"
    )
    assert names == frame["full_name"].tolist()
    assert "gemm" == frame["family"][0]
    # By the graph's id, or by sharing the correlation of a graph launch; id 0 is no graph.
    calls = [made.call("hipGraphLaunch", 1, 1, 5), made.call("cudaGraphLaunch", 2, 1, 6)]
    graphs = [(5, 0), (5, None), (7, 3), (8, 0)]
    kernels = [made.kernel("a", 3 + i, 1, c, **{"graph id": g}) for i, (c, g) in enumerate(graphs)]
    found = made.read(tmp_path, *calls, *kernels)
    assert [True, True, True, False] == found.table("KERNELS")["in_graph"].tolist()
    assert any("1 of 2 graph launches have no kernels in the trace" in note for note in found.notes)
    assert "2 of 4 GPU operations (50.0%) have no call that launched them" in found.notes
    # hipExtModuleLaunchKernel takes threads: 100 x 64 of them in blocks of 32 x 32 are 4 x 2 blocks.
    shape = {"grid": [100, 64, 1], "block": [32, 32, 1]}
    calls = [made.call("hipExtModuleLaunchKernel", 1, 1, 1), made.call("hipLaunchKernel", 2, 1, 2)]
    frame = made.read(
        tmp_path, *calls, *(made.kernel("a", 3 + c, 1, c, **shape) for c in (1, 2))
    ).table("KERNELS")
    assert [8, 6400] == frame["grid_blocks"].tolist()


def test_copies_and_their_peers(tmp_path: Path) -> None:
    for name, kind, expected in [
        ("Memcpy HtoD (Pinned -> Device)", None, ("H2D", "pinned", "device")),
        ("Memcpy DtoH (Device -> Pageable)", None, ("D2H", "device", "pageable")),
        ("Memcpy HtoA (Pageable -> Array)", None, ("H2D", "pageable", "array")),
        ("Memcpy DtoD (Device -> Device Static)", None, ("D2D", "device", "device static")),
        ("Memcpy Unknown (Unknown -> Unknown)", None, ("unknown", "unknown", "unknown")),
        ("Memcpy HtoH", None, ("H2H", None, None)),
        ("CopyHostToDevice", "HtoD", ("H2D", None, None)),  # AMD repeats the direction as kind
        ("CopyHostToDevice", None, ("unknown", None, None)),
        *(
            (name, kind, ("memset", None, "device"))
            for name, kind in (("Memset (Device)", None), ("Memset", "Device"))
        ),
    ]:
        frame = made.read(tmp_path, made.copy(name, 1, 1, kind=kind)).table("COPIES")
        columns = ("direction", "src_memory", "dst_memory", "bytes", "peer_gpu")
        assert [(*expected, 4096, -1)] == rows(frame, *columns)
    sides = {
        "device": None,
        "fromDevice": 0,
        "toDevice": 3,
    }  # the copy runs on the GPU that it is recorded in
    copies = [
        made.copy("Memcpy PtoP (Device -> Device)", 1 + gpu, 1, **sides, inDevice=gpu)
        for gpu in (0, 3)
    ]
    frame = made.read(tmp_path, *copies).table("COPIES")
    assert [(0, 3, "P2P"), (3, 0, "P2P")] == rows(frame, "gpu", "peer_gpu", "direction")
    # ROCm records no size of some copies: their bytes are 0, which a note says.
    found = made.read(
        tmp_path, made.copy("Memset (Device)", 1, 1, bytes=None), made.copy("Memset (Device)", 2, 1)
    )
    assert [0, 4096] == found.table("COPIES")["bytes"].tolist()
    assert "1 of 2 copies and memsets carry no size, their bytes are 0" in found.notes


def test_collectives(tmp_path: Path) -> None:
    for name, sent, received, operation, size in [
        *(("allreduce", 10, 10, "all_reduce", 40), ("_allgather_base", 10, 40, "all_gather", 160)),
        ("allgather_into_tensor_coalesced", 10, 40, "all_gather", 160),
        *(
            ("_reduce_scatter_base", 40, 10, "reduce_scatter", 160),
            ("broadcast", 10, 10, "broadcast", 40),
        ),
        *(("_reduce_oop", 10, 10, "reduce", 40), ("all_to_allv", 40, 36, "all_to_all", 160)),
        # The size is the larger buffer's, which of a gather or scatter only the root has.
        *(
            ("send", 10, 0, "send_recv", 40),
            ("gather", 10, 0, "gather", 160),
            ("gather", 10, 40, "gather", 160),
        ),
        *(
            ("scatter", 0, 10, "scatter", 160),
            ("barrier", 1, 1, "barrier", 4),
            ("new_thing", 10, 10, None, 40),
        ),
    ]:
        kernel = made.kernel(made.NCCL, 1, 2.5, **made.message(name, sent, received, 4))
        frame = made.read(tmp_path, kernel).table("COLLECTIVES")
        columns = (
            "operation",
            "bytes",
            "dtype",
            "ranks",
            "dur_ns",
            "group",
            "source",
            "algorithm",
            "protocol",
        )
        assert [(operation, size, "float32", 4, 2500.0, "0", "trace", None, None)] == rows(
            frame, *columns
        )
    # An unknown type of element, or none of the arguments: no row, and a note.
    kernels = [
        made.kernel(made.NCCL, 1, 1, **{**made.message(), "dtype": "Odd"}),
        made.kernel(made.NCCL, 2, 1),
    ]
    found = made.read(tmp_path, *kernels, made.kernel(made.NCCL, 3, 1, **made.message()))
    assert 1 == len(found.table("COLLECTIVES"))
    assert any("2 of 3 collective kernels tell no message size" in note for note in found.notes)


def test_a_grid_and_a_block_of_zeros_were_not_recorded(tmp_path: Path) -> None:
    """A kernel without blocks or threads cannot run; ROCm's traces write zeros."""
    zeros = {"grid": [0, 0, 0], "block": [0, 0, 0], "registers per thread": 0}
    frame = made.read(tmp_path, made.kernel("a", 1, 1, **zeros)).table("KERNELS")
    assert frame[["grid_blocks", "block_threads", "registers"]].isna().all(axis=None)


def test_registers_of_no_kernel_alone_are_zero(tmp_path: Path) -> None:
    some = [
        made.kernel("a", 1 + i, 1, i, **{"registers per thread": n}) for i, n in enumerate((0, 40))
    ]
    assert [0, 40] == made.read(tmp_path, *some).table("KERNELS")["registers"].tolist()


def test_memory_of_device_type_0_is_the_cpus(tmp_path: Path) -> None:
    events = made.memory(5, 100, device=0, kind=0), made.memory(6, 200, device=0, kind=1)
    samples = made.read(tmp_path, made.kernel("a", 1, 1), *events).table("SAMPLES")
    held = samples[samples["metric"] == "memory_allocated_bytes"]
    assert [(-1, 100.0), (0, 200.0)] == list(zip(held["gpu"], held["value"], strict=True))
