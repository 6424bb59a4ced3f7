"""Pickles are read without running them: equal to what pickle itself reads, and everything else refused by name."""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from perfkit.dumps.pickled import load
from perfkit.errors import ReadError

PLAIN: dict[str, Any] = {
    "numbers": [0, 255, 256, 65_536, -1, 2**31, -(2**62), 1.5],
    "texts": ["", "a", "ä" * 300],
    "nested": {"a": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], 3: None},
    "flags": [True, False],
}


def written(folder: Path, value: object, protocol: int = 4) -> Path:
    path = folder / "dump"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


def refusal(folder: Path, content: bytes) -> str:
    path = folder / "dump"
    path.write_bytes(content)
    with pytest.raises(ReadError) as refused:
        load(path)
    return str(refused.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_what_pickle_reads(protocol: int, tmp_path: Path) -> None:
    assert PLAIN == load(written(tmp_path, PLAIN, protocol))


def test_a_value_that_stands_twice_is_one_object(tmp_path: Path) -> None:
    shared = [1, 2]
    read: Any = load(written(tmp_path, [shared, shared]))
    assert read[0] is read[1]


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(("protocol", "opcode"), [(2, "GLOBAL"), (4, "STACK_GLOBAL")])
def test_a_pickle_that_would_run_code_is_refused_by_the_opcode(
    protocol: int, opcode: str, tmp_path: Path
) -> None:
    content = pickle.dumps({"a": Harmful(tmp_path / "harm")}, protocol=protocol)
    assert f"the opcode {opcode} at byte" in refusal(tmp_path, content)


def test_a_pickle_that_would_run_code_runs_none(tmp_path: Path) -> None:
    refusal(tmp_path, pickle.dumps(Harmful(tmp_path / "harm")))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "opcode"),
    [
        (b"\x80\x02cos\nsystem\n.", "GLOBAL"),
        (b"\x80\x02(S'ls'\nios\nsystem\n.", "STRING"),
        (b"\x80\x02)R.", "REDUCE"),
        (b"\x80\x02}b.", "BUILD"),
        (b"\x80\x02Pname\n.", "PERSID"),
        (b"\x80\x04Q.", "BINPERSID"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x04)\x81.", "NEWOBJ"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f.", "LONG4"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b".", "BINUNICODE8"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
    ],
)
def test_an_opcode_that_plain_data_does_not_need_is_named(
    content: bytes, opcode: str, tmp_path: Path
) -> None:
    assert f"the opcode {opcode} at byte" in refusal(tmp_path, content)


def test_a_class_of_the_standard_library_is_refused_too(tmp_path: Path) -> None:
    assert "STACK_GLOBAL" in refusal(tmp_path, pickle.dumps(OrderedDict(a=1), protocol=4))


@pytest.mark.parametrize("end", [0, 1, 2, 10, 40, -1])
def test_a_cut_pickle_is_refused(end: int, tmp_path: Path) -> None:
    assert "the pickle cannot be read" in refusal(tmp_path, pickle.dumps(PLAIN, 4)[:end])


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]a.",  # a list without a value to append
        b"\x80\x02e.",  # no mark
        b"\x80\x02h\x05.",  # a number that nothing was kept under
        b"\x80\x02(K\x01K\x02u.",  # items for no dictionary
        b"\x80\x02}]K\x01s.",  # a key that is a list
        b"\x80\x02\x87.",  # a tuple of values that are not there
    ],
)
def test_a_pickle_that_contradicts_itself_is_refused(content: bytes, tmp_path: Path) -> None:
    assert "contradicts what is before it" in refusal(tmp_path, content)


def test_a_number_of_many_bytes_is_refused(tmp_path: Path) -> None:
    assert "a number of 255 bytes" in refusal(tmp_path, b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".")


def test_a_file_cannot_make_too_many_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.dumps.pickled.MOST_OBJECTS", 1000)
    assert "more than 1,000 objects at once" in refusal(tmp_path, b"\x80\x02(" + b"]" * 1001)


def test_a_file_cannot_make_the_stack_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.dumps.pickled.MOST_WAITING", 1000)
    assert "more than 1,000 values wait" in refusal(tmp_path, b"\x80\x02" + b"(" * 1001)


def test_a_deep_pickle_is_read_without_recursion(tmp_path: Path) -> None:
    depth = 100_000
    path = tmp_path / "dump"
    path.write_bytes(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    value: Any = load(path)
    levels = 1
    while value:
        value = value[0]
        levels += 1
    assert depth == levels


def test_dictionaries_in_lists_can_be_shrunk_while_they_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, {"rows": [{"a": 1}, {"a": 2}]})
    assert {"rows": [1, 2]} == load(path, shrink=lambda row: row["a"])


def test_dictionaries_that_are_shrunk_do_not_fill_the_memo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of 1 GB holds 13 million of them, and pickle numbers each."""
    monkeypatch.setattr("perfkit.dumps.pickled.MOST_OBJECTS", 1100)
    path = written(tmp_path, {"rows": [{"a": number} for number in range(3000)], "end": ["a"]})
    read = {"rows": [*range(3000)], "end": ["a"]}
    assert read == load(path, shrink=lambda row: row["a"])
