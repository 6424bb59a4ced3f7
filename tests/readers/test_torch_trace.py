"""PyTorch traces as files: forms, recognition, cuts and damage (made files)."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import torch_files as made
from readers.torch_files import Write, every_form

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import torch_trace
from perfkit.readers.torch_trace import stream
from perfkit.readers.torch_trace.stream import Text
from perfkit.tables import TABLES

CUT = "the file ends before its trace does"


def tables(profile: Profile) -> dict[str, pd.DataFrame]:
    """Every table but the one that holds the path."""
    return {name: profile.table(name) for name in TABLES if name != "CAPTURE"}


def is_cut(profile: Profile) -> bool:
    return any(CUT in note for note in profile.notes)


@every_form
def test_every_form_is_read_alike(write: Write, tmp_path: Path) -> None:
    expected = torch_trace.read(made.printed(tmp_path / "printed.json", made.sample()))
    found = torch_trace.read(write(tmp_path / "trace.json", made.sample()))
    assert not is_cut(found)
    assert {"KERNELS", "COPIES", "API_CALLS", "OPS", "RANGES", "SAMPLES", "COLLECTIVES", "DEVICES"} < set(found.loaders)
    for name, frame in tables(found).items():
        pd.testing.assert_frame_equal(expected.table(name), frame, check_exact=True)


@every_form
@pytest.mark.parametrize("size", [40, 100, 777, 5000])
def test_blocks_of_any_size_give_the_same(
    write: Write, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ['},{"ph":"X"', 'a "quoted" one', "back\\slash", 'both\\"', "\\\\", "täst\n\t", "]}]}"]
    nested = {"Input Dims": [[1, {"ph": "X"}, {"name": "x"}], [2, {"ts": 1}]], "Call stack": '},\n{"name": "'}
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


def test_unknown_keys_and_their_order_do_not_matter(tmp_path: Path) -> None:
    sample = made.sample()
    late = {"traceEvents": sample.pop("traceEvents"), "INFO": [{"id": 1}, {"ph": "x"}], "username": "u", **sample}
    found = torch_trace.read(made.printed(tmp_path / "late.json", late))
    assert (0, "CUDA 12.4") == (found.rank, found.capture["tool_version"].iloc[0])
    assert made.BASE + 99_500 == found.capture["t0_unix_ns"].iloc[0]


def test_marks_members_and_numbers_without_a_value_are_passed_over(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + json.dumps(made.sample()).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text[:500]) + gzip.compress(text[500:]) + bytes(10))
    assert torch_trace.sniff(path)
    assert 2 == len(torch_trace.read(path).table("KERNELS"))
    # What Kineto and Python write for a quotient by zero is not JSON, and refuses no trace.
    text = made.printed(tmp_path / "trace.json", made.trace(made.kernel("k", 1, 2, share=0.125))).read_text()
    for number in ("NaN", "-nan", "inf", "-inf", "Infinity", "N/A"):
        path.write_text(text.replace("0.125", number))
        assert ["k"] == torch_trace.read(path).table("KERNELS")["full_name"].tolist()


def test_one_pass_fills_all_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading opens the file once; with a cache, every table is then there, Python functions too, and not in memory."""
    opened: list[Path] = []
    original = stream.Source.__init__
    monkeypatch.setattr(stream.Source, "__init__", lambda self, path: opened.append(path) or original(self, path))
    monkeypatch.setenv("PERFKIT_CACHE", str(tmp_path / "cache"))
    found = perfkit.load(made.printed(tmp_path / "trace.json", made.sample())).profiles[0]
    assert [0, 1] == found.table("PYTHON_CALLS")["depth"].tolist()
    names = {path.name.partition(".")[0] for path in (tmp_path / "cache").rglob("*.parquet")}
    assert names == {"CAPTURE", *found.loaders}
    kernels = found.table("KERNELS")
    found.release("KERNELS")
    assert kernels is not found.table("KERNELS")
    pd.testing.assert_frame_equal(kernels, found.table("KERNELS"))
    assert 1 == len(opened)


def outcome(path: Path) -> tuple[int, str]:
    """Number of operators, -1 if the file is refused, and the notes or the message."""
    try:
        found = torch_trace.read(path)
    except ReadError as e:
        return -1, str(e)
    return len(found.table("OPS")), "\n".join(found.notes)


@every_form
def test_a_file_cut_anywhere_is_read_to_its_last_whole_event(write: Write, tmp_path: Path) -> None:
    """Whatever a killed job left gives the events that were whole, with a note; without one it is an error."""
    path = write(tmp_path / "trace.json", made.sample())
    whole, (full, _) = path.read_bytes(), outcome(path)
    seen = set()
    for size in range(1, len(whole), 61):
        path.write_bytes(whole[:size])
        rows, words = outcome(path)
        refused = f"^{re.escape(str(path))}: the file is cut (before its first whole event|or damaged)"
        assert re.search(refused if rows < 0 else CUT, words)
        seen.add(rows)
    assert {-1, 0, full} <= seen


def test_a_cut_says_how_much_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps(made.trace(made.op("a", 1, 1), made.op("b", 2, 1)))
    # After the last whole event are a comma, a blank and 30 bytes of another event.
    path.write_text(text[: text.index(', {"ph": "X", "cat": "cpu_op", "name": "b"') + 32])
    rows, words = outcome(path)
    assert 1 == rows
    assert "30 bytes of what follows are dropped" in words


def test_garbage_in_the_middle_is_never_taken_for_a_cut(tmp_path: Path) -> None:
    path = made.printed(tmp_path / "trace.json", made.sample())
    whole = path.read_bytes()
    dice = random.Random(5)
    refused = 0
    for _ in range(60):
        place = dice.randrange(len(whole) - 20)
        path.write_bytes(whole[:place] + dice.randbytes(20) + whole[place + 20 :])
        rows, words = outcome(path)
        assert words.startswith(f"{path}: ") if rows < 0 else CUT not in words
        refused += rows < 0
    assert refused > 55


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": 5}, "Expected `str`, got `int`"),
        *(({"ts": "soon"}, "a time is '\"soon\"', not a number"), ({"ts": None}, "a time is 'null', not a number")),
        ({"dur": 1e300}, "which is no time of a recording"),
        ({"pid": [1]}, "Expected `int | float | str | null`, got `array`"),
        ({"args": 7}, "Expected `object | null`, got `int`"),
        ({"args": {"grid": "all"}}, "Expected `array | null`, got `str`"),
    ],
)
def test_values_of_a_wrong_type_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=f"trace.json: .*{re.escape(words)}"):
        made.read(tmp_path, made.kernel("a", 1, 1), {**made.kernel("k", 1, 1), **changes})


def test_a_header_of_a_wrong_type_is_refused(tmp_path: Path) -> None:
    for key in ("baseTimeNanoseconds", "deviceProperties", "distributedInfo"):
        with pytest.raises(ReadError, match=f"trace.json: .*{key}"):
            made.read(tmp_path, made.op("a", 1, 1), **{key: "text"})


def test_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps(made.trace(made.op("a", 1, 1, deep="HERE"))).encode()
    for tail, words in (
        (b', "INFO": oops}', "what follows the events is not JSON"),
        (b"} and more", "what follows the events is not JSON"),
        # JSON's parsers take the last of two keys: the events of the other list would be lost without a word.
        (b', "traceEvents": []}', r"trace\.json: the trace is damaged .* \(it has traceEvents twice\)"),
    ):
        path.write_bytes(text.removesuffix(b"}") + tail)
        with pytest.raises(ReadError, match=words):
            torch_trace.read(path)
    path.write_bytes(text.replace(b'"HERE"', b"[" * 100_000 + b"]" * 100_000))  # deeper than can be followed
    with pytest.raises(ReadError, match="the trace is damaged"):
        torch_trace.read(path)
    # Bytes changed within the packed text fail its check.
    path = made.packed(tmp_path / "trace.json.gz", made.sample())
    whole = bytearray(path.read_bytes())
    whole[-6] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ReadError, match=r"trace.json.gz: the gzip stream is damaged \(.*Copy the file again"):
        torch_trace.read(path)


def test_what_has_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bracket that never closes is not searched for through the whole of a large file."""
    monkeypatch.setattr(stream, "LONGEST", 2000)
    monkeypatch.setattr(Text.__init__, "__defaults__", (500,))
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X", "args": {' + '"a": 1, ' * 1000)
    with pytest.raises(ReadError, match="no event ends within 2000 bytes"):
        torch_trace.read(path)
    path.write_text('{"schemaVersion": 1, "deviceProperties": [' + "1, " * 1000)
    with pytest.raises(ReadError, match="the file is cut or damaged before the events"):
        torch_trace.read(path)
    # A file of zero bytes behind the events is not read into memory.
    monkeypatch.setattr(stream, "LONGEST", 1 << 16)
    monkeypatch.setattr(Text.__init__, "__defaults__", (1 << 14,))
    path.write_bytes(made.printed(path, made.sample()).read_bytes().rstrip(b"}\n") + bytes(1 << 20))
    with pytest.raises(ReadError, match=r"more than 65536 bytes follow the events"):
        torch_trace.read(path)


EPOCH = 1_700_000_000_000_000  # us


@pytest.mark.parametrize(("ts", "dur"), [(0, 5), (-1, 5), (EPOCH, 1_600_000_000_000_000), (2_300_000_000_000_000, 5)])
@pytest.mark.parametrize("category", ["cpu_op", "kernel", "python_function"])
def test_an_event_of_another_decade_is_left_out(category: str, ts: float, dur: float, tmp_path: Path) -> None:
    """One event at 0, or one that lasts 50 years, would be zero or end of all tables: it is left out and counted."""
    kinds = ("cpu_op", "kernel", "python_function")
    near = [made.event(kind, "near", EPOCH + i, 5) for i in range(3) for kind in kinds]
    profile = made.read(tmp_path, *near, made.event(category, "far", ts, dur))
    assert 7_000 == profile.capture["dur_ns"].item()
    for table in ("OPS", "KERNELS", "PYTHON_CALLS"):
        assert [0, 1_000, 2_000] == profile.table(table)["start_ns"].tolist()
    noted = "events more than ten years before or after most others, or as long, are left out (1)"
    assert noted in profile.notes


@pytest.mark.parametrize("number", [-(2**63), -5, 2**31, 2**40, 2**70])
def test_a_number_that_no_gpu_has_is_unknown(number: int, tmp_path: Path) -> None:
    kernel = {**made.kernel("k", 1, 5), "pid": number, "args": {}}
    copy = {**made.copy("Memcpy PtoP", 2, 5), "args": {"inDevice": 0, "fromDevice": number, "toDevice": 0}}
    profile = made.read(tmp_path, kernel, copy)
    assert ([-1], [-1]) == (profile.table("KERNELS")["gpu"].tolist(), profile.table("COPIES")["peer_gpu"].tolist())
    # Rank -1 stands for no rank; a note says that the trace states it.
    profile = made.read(tmp_path, made.op("a", 1, 2), distributedInfo={"rank": -1})
    assert profile.rank is None
    assert "the trace states rank -1, which is none: left out" in profile.notes


@pytest.mark.parametrize("place", ["head", "between", "tail", "text"])
def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some kilobytes of gzip hold megabytes of blanks or letters: reading stops at the limit, wherever they stand."""
    monkeypatch.setattr(stream, "MOST", 1 << 20)
    whole = json.dumps(made.trace(made.op("a", 1, 2), made.op("b", 3, 2))).encode()
    marks = {"head": b'"traceEvents"', "between": b', {"ph"', "tail": b"]}", "text": b'"b", "pid"'}
    at = whole.rindex(marks[place]) + (place in ("tail", "text"))
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(whole[:at] + (b"a" if place == "text" else b" ") * (8 << 20) + whole[at:], 9))
    assert path.stat().st_size < 1 << 15
    with pytest.raises(ReadError, match=r"trace\.json\.gz: its \d+ bytes unpack to more than \d+, as no trace does"):
        torch_trace.read(path)


OTHERS: dict[str, Any] = {
    "execution trace": {"schema": "1.0.2-chakra.0.0.4", "pid": 1, "time": "now", "nodes": [{"id": 1, "name": "x"}]},
    "another program's Chrome trace": {"traceEvents": [{"ph": "X", "cat": "xla", "name": "fusion", "ts": 1, "dur": 1}]},
    "a summary of a trace": {"schemaVersion": 1, "device": {"deviceProperties": [made.DEVICE]}, "cat": "kernel"},
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
        (OTHERS["execution trace"], r"a PyTorch execution trace \(it has nodes, no traceEvents\)"),
        ({"schemaVersion": 1, "deviceProperties": []}, head),
        ({"one": 1, "two": {"three": 3}}, r"not a PyTorch profiler trace \(keys: 'one', 'two'\).*export_chrome_trace"),
    ):
        path.write_text(json.dumps(other))
        with pytest.raises(ReadError, match=f"^{re.escape(str(path))}: .*{words}"):
            perfkit.load(path)
    # Beside a trace it is no error, and a note names it.
    path.write_text(json.dumps(OTHERS["execution trace"]))
    made.printed(tmp_path / "trace.json", made.sample())
    run = perfkit.load(tmp_path)
    assert ["trace.json"] == [profile.path.name for profile in run.profiles]
    assert any("left out what is no profile (other.json)" in note for note in run.notes)


@every_form
def test_a_trace_is_recognised_by_its_header_or_its_events(write: Write, tmp_path: Path) -> None:
    # The header is longer than what is looked at.
    long = {"schemaVersion": 1, "distributedInfo": {"pg_config": ["group"] * 20_000}, **made.trace(made.op("a", 1, 1))}
    assert torch_trace.sniff(write(tmp_path / "long.json", long))
    bare = {"traceEvents": [made.event("Kernel", "k", 1, 1, 0, "stream 7")], "distributedInfo": {"rank": 1}}
    assert torch_trace.sniff(write(tmp_path / "bare.json", bare))
