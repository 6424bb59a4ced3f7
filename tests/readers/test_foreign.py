"""Files of other tools: each is told for what it is, with what to record instead."""

import gzip
import pickle
from pathlib import Path

import pytest

from perfkit.readers import unrecognised

TRITON = b'[{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":5294383183578}]}]'
NVPROF = b"step 1\n==24242== NVPROF is profiling process 24242, command: ./app\n"
AVERAGES = b"-----  -----\n Name    Self CPU %    Self CPU    # of Calls  \n-----  -----\n"


def told(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(unrecognised(path))


@pytest.mark.parametrize(
    ("content", "what", "instead"),
    [
        (AVERAGES, "key_averages()", "export_chrome_trace"),
        (TRITON, "Triton Inference Server", "nsys profile"),
        (NVPROF, "nvprof", "nsys profile"),
        (pickle.dumps([1, 2]), "a pickle of Python", "export_chrome_trace"),
    ],
    ids=[
        "key_averages",
        "Triton",
        "nvprof",
        "pickle",
    ],
)
def test_a_file_of_another_tool_is_told_with_what_to_record(
    content: bytes, what: str, instead: str, tmp_path: Path
) -> None:
    text = told(tmp_path / "file", content)
    assert what in text
    assert instead in text


def test_a_file_of_another_tool_gets_no_list_of_all_formats(tmp_path: Path) -> None:
    assert "Point at" not in told(tmp_path / "file", TRITON)


def test_a_packed_file_is_told_like_the_unpacked_one(tmp_path: Path) -> None:
    packed, plain = told(tmp_path / "file", gzip.compress(TRITON)), told(tmp_path / "file", TRITON)
    assert packed == plain


def test_an_unknown_packed_file_is_described_by_what_is_in_it(tmp_path: Path) -> None:
    assert "unpacked it starts with b'hello world'" in told(
        tmp_path / "file.gz", gzip.compress(b"hello world")
    )


def test_a_damaged_packed_file_is_described_by_its_own_bytes(tmp_path: Path) -> None:
    assert "starts with b'\\x1f\\x8b" in told(tmp_path / "file.gz", b"\x1f\x8b" + bytes(40))


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "harm",))  # type: ignore[return-value]

    told(tmp_path / "file", pickle.dumps({"segments": Harmful(), "total_size": 1}))
    assert not (tmp_path / "harm").exists()


def test_a_folder_of_pickles_is_told_by_the_first_of_them(tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(pickle.dumps([1, 2]))
    assert "a pickle of Python" in str(unrecognised(tmp_path))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("reports/single_process_loader/table.txt", "export_chrome_trace"),
        ("torch/cmpark0126__ml-serving__triton_server_trace.json.gz", "Triton Inference Server"),
    ],
)
def test_real_files_of_other_tools(name: str, what: str, profiles: Path) -> None:
    if not (profiles / name).exists():
        pytest.skip(f"PERFKIT_PROFILES has no {name}")
    assert what in str(unrecognised(profiles / name))
