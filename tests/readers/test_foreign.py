"""Files that people have and perfkit does not read: each is told for what it is, with what to do instead."""

import gzip
import io
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import perfkit
from perfkit.errors import ReadError

TRITON = b'[{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":5294383183578}]}]'
NVPROF = b"step 1\n==24242== NVPROF is profiling process 24242, command: ./app\n"
AVERAGES = b"-----  -----\n Name    Self CPU %    Self CPU    # of Calls  \n-----  -----\n"
TEGRASTATS = b"RAM 2448/7763MB (lfb 1x4MB) SWAP 0/3881MB CPU [2%@1190,1%@1190] GR3D_FREQ 0%\n"
ROCPROF = b'"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Start_Timestamp"\n'
ROCPROF_STATS = b'"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
ROCPROF_OLD = b"Index,KernelName,gpu-id,queue-id,queue-index,pid,tid\n"
NSYS_STATS = b" Time (%)  Total Time (ns)  Instances   Avg (ns)    Med (ns)\n"
NVPROF_CSV = b'"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n'
PROTON = b'[{"children":[],"frame":{"name":"ROOT","type":"function"},"metrics":{"time (ns)":0}}]'
ORT = b'[\n{"cat" : "Session","pid" :1,"tid" :1,"dur" :1,"ts" :1,"ph" : "X","name" :"model"}]'
CHAKRA = b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}'
EXECUTION = b'{"schema": "1.0.1", "pid": 1, "nodes": []}'
SERVER = b'I0409 10:26:15.123456 1 server.cc:633] "started"\n'


def database(*tables: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as opened:
        for table in tables:
            opened.execute(f"CREATE TABLE {table} (id INTEGER)")
        opened.commit()
        return opened.serialize()


def zipped(name: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, b"x")
    return made.getvalue()


def tarred() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("run.sqlite"))
    return made.getvalue()


NSYS, TORCH, AMD = "nsys profile", "export_chrome_trace", "--output-format rocpd"
# The name of a file, what it holds, what perfkit calls it, and what it says to do.
WRONG = [
    ("run.qdrep", b"junk", "no report of Nsight Systems", "Copy it again"),
    ("run.nsys-rep", b"junk", "no report of Nsight Systems", "where nsys is installed"),
    ("run.ncu-rep", b"junk", "no report of Nsight Compute", "--csv --page raw"),
    ("run.ncu-repz", b"junk", "a packed report of Nsight Compute", "Save it unpacked"),
    ("stats.txt", NSYS_STATS, "what `nsys stats` prints", "nsys export -t sqlite"),
    ("run.h5", b"\x89HDF\r\n\x1a\n", "an HDF5 file", "nsys export -t sqlite"),
    ("KERNEL.parquet", b"PAR1junk", "one table of Parquet or Arrow", "parquetdir"),
    ("run.nvvp", database("StringTable"), "a database of nvprof or the Visual Profiler", NSYS),
    ("prof.db", database("CUPTI_ACTIVITY_KIND_KERNEL", "StringTable"), "a database of nvprof", NSYS),
    ("nvprof.txt", NVPROF, "the output of nvprof", NSYS),
    ("nvprof.csv", NVPROF_CSV, "the output of nvprof", "ncu --set full"),
    ("averages.txt", AVERAGES, "the table that key_averages()", TORCH),
    ("model.pt", zipped("model/data.pkl"), "a checkpoint", TORCH),
    ("weights", zipped("archive/data.pkl"), "a checkpoint", TORCH),
    ("old.pth", pickle.dumps([1, 2]), "a checkpoint", TORCH),
    ("model.safetensors", b"@\0\0\0\0\0\0\0{}", "a checkpoint", TORCH),
    ("data.pickle", pickle.dumps([1, 2]), "a pickle of Python", TORCH),
    ("host.xplane.pb", b"\n\x05junk", "an XPlane of TensorFlow or JAX", NSYS),
    ("run.pftrace", b"\n\x05junk", "a trace of Perfetto", AMD),
    ("run.perfetto-trace", b"\n\x05junk", "a trace of Perfetto", NSYS),
    ("kernel_trace.csv", ROCPROF, "a trace of rocprof as CSV", AMD),
    ("kernel_stats.csv", ROCPROF_STATS, "a trace of rocprof as CSV", AMD),
    ("results.csv", ROCPROF_OLD, "a trace of rocprof as CSV", AMD),
    ("trace.rpd", database("rocpd_op", "rocpd_api"), "a database of rocmProfileData", AMD),
    ("rank0.et", b"junk", "an execution trace of Chakra", TORCH),
    ("chakra.json", CHAKRA, "an execution trace of Chakra", TORCH),
    ("execution.json", EXECUTION, "a PyTorch execution trace", TORCH),
    ("ort.json", ORT, "a profile of ONNX Runtime", NSYS),
    ("proton.hatchet", PROTON, "a tree of Triton's Proton", "proton-viewer"),
    ("tree.json", PROTON, "a tree of Triton's Proton", NSYS),
    ("requests.json", TRITON, "a trace of Triton Inference Server", "tritonserver"),
    ("server.log", SERVER, "a log of Triton Inference Server", "tritonserver"),
    ("run-ab12.wandb", b":W&B", "a run of Weights & Biases", TORCH),
    ("wandb-summary.json", b'{"loss": 0.1}', "a run of Weights & Biases", TORCH),
    ("events.out.tfevents.17.host.1.0", b"junk", "events of TensorBoard", TORCH),
    ("tegrastats.log", TEGRASTATS, "a log of tegrastats", NSYS),
    ("perf.data", b"PERFILE2", "a profile of the CPU alone", NSYS),
    ("run.prof", b"\xfbjunk", "a profile of the CPU alone", NSYS),
    ("screen.png", b"\x89PNG\r\n", "a picture", "Load the file that it was drawn from"),
    ("paper.pdf", b"%PDF-1.7", "a picture", "Load the file that it was drawn from"),
    ("runs.zip", zipped("run.sqlite"), "an archive", "`unzip FILE -d FOLDER`"),
    ("runs.tar", tarred(), "an archive", "`tar xf FILE`"),
    ("runs.tgz", gzip.compress(tarred()), "an archive", "`tar xf FILE`"),
    ("trace.json.zst", b"\x28\xb5\x2f\xfdjunk", "a packed file", "zstd"),
    ("run.sqlite", b"<!DOCTYPE html><html>", "a web page", "Download the file itself"),
    ("train.py", b"import torch\n", "a program's source", NSYS),
    ("a.out", b"\x7fELF", "a program", NSYS),
    ("other.db", database("notes"), "an SQLite database", "nsys export"),
    ("empty.json", b"", "the file is empty (0 bytes)", "copy it again"),
    ("pointer", b"version https://git-lfs.github.com/spec/v1\n", "a git-LFS pointer", "git lfs pull"),
    ("MANIFEST", b"HPCTOOLKIT-", "one of the files of an HPCToolkit database", "Load its folder"),
    ("notes.txt", b"hello world", "starts with b'hello world'", "Point at"),
]  # fmt: skip
REPORT = b"NVIDIA Tegra Profiler Report" + bytes(100)


def told(path: Path) -> str:
    """Return what perfkit says of a path that it cannot load, which that names first."""
    with pytest.raises(ReadError) as caught:
        perfkit.load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "what", "instead"), WRONG, ids=[name for name, *_ in WRONG]
)
def test_a_wrong_file_is_told_for_what_it_is_and_what_to_do(
    name: str, content: bytes, what: str, instead: str, tmp_path: Path
) -> None:
    text = told(written(tmp_path / name, content))
    assert what in text
    assert instead in text


@pytest.mark.parametrize(
    ("name", "content"), [row[:2] for row in WRONG[:-1]], ids=[row[0] for row in WRONG[:-1]]
)
def test_a_known_file_gets_a_short_text(name: str, content: bytes, tmp_path: Path) -> None:
    assert len(told(written(tmp_path / name, content))) < 330


@pytest.mark.parametrize("name", ["run.nsys-rep", "run.qdrep"])
def test_a_report_without_nsys_is_told_with_its_export(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    text = told(written(tmp_path / name, REPORT))
    assert "`nsys` is not on PATH" in text
    assert f"nsys export -t sqlite -o run.sqlite {name}" in text


@pytest.mark.parametrize(
    ("address", "command"),
    [
        ("https://example.org/run.sqlite", "curl -LO https://example.org/run.sqlite"),
        ("s3://bucket/run.sqlite", "aws s3 cp s3://bucket/run.sqlite ."),
        ("gs://bucket/run.sqlite", "gcloud storage cp gs://bucket/run.sqlite ."),
        ("https://a.org/x;rm", "curl -LO 'https://a.org/x;rm'"),
    ],
)
def test_an_address_is_told_with_how_to_download_it(address: str, command: str) -> None:
    with pytest.raises(ReadError) as caught:
        perfkit.load(address)
    assert str(caught.value) == (
        f"{address}: an address, and perfkit downloads nothing. Run `{command}`, and load the file."
    )


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ([], "nothing in this folder is a profile perfkit reads"),
        (["screen.png"], "screen.png: this is a picture"),
        (["notes.txt", "runs.zip"], "runs.zip: this is an archive"),
    ],
)
def test_a_folder_without_a_profile_is_told_by_what_lies_in_it(
    names: list[str], what: str, tmp_path: Path
) -> None:
    content = {name: content for name, content, *_ in WRONG}
    for name in names:
        written(tmp_path / name, content[name])
    with pytest.raises(ReadError, match=what):
        perfkit.load(tmp_path)


def test_a_packed_file_is_told_like_the_unpacked_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert told(written(path, gzip.compress(TRITON))) == told(written(path, TRITON))


def test_an_unknown_packed_file_is_described_by_what_is_in_it(tmp_path: Path) -> None:
    text = told(written(tmp_path / "file.gz", gzip.compress(b"hello world")))
    assert "unpacked it starts with b'hello world'" in text


def test_a_damaged_packed_file_is_described_by_its_own_bytes(tmp_path: Path) -> None:
    assert "starts with b'\\x1f\\x8b" in told(
        written(tmp_path / "file.gz", b"\x1f\x8b" + bytes(40))
    )


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
            return (Path.touch, (tmp_path / "harm",))

    told(written(tmp_path / "file", pickle.dumps(Harmful())))
    assert not (tmp_path / "harm").exists()


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
    assert what in told(profiles / name)
