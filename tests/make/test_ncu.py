"""The raw page as Nsight Compute writes it."""

from pathlib import Path

import pytest
from counted import page

import perfkit
from make import cases
from make.ncu import Launch, write

LAUNCH = Launch("void <unnamed>::app::work<4>(int, T1 *)", (3, 2, 1), (128, 1, 1))


def test_log_stands_before_the_table(tmp_path: Path) -> None:
    """It says that the file is simulated, what the program printed, and which launches were profiled."""
    path = write(tmp_path / "x.csv", [LAUNCH] * 2, {}, label="a test", output=["hello"])
    log = path.read_text().split('"ID",')[0].splitlines()
    assert ("==WARNING== Simulated: a test", True) == (log[0], "hello" in log)
    assert 2 == sum(line.startswith('==PROF== Profiling "work" - ') for line in log)
    assert 2 == len(page(write(tmp_path / "none.csv", [], {"dram__bytes.sum": []}, label="a test")))
    with pytest.raises(ValueError, match=r"metrics: dram__bytes\.sum have not 2 values"):
        write(tmp_path / "few.csv", [LAUNCH] * 2, {"dram__bytes.sum": [1]}, label="a test")
    assert not (tmp_path / "few.csv").exists()


def test_cases_have_known_answers(tmp_path: Path) -> None:
    """3,003,000 double, 2,816,000 packed half (2, 2 and 4 a piece), and each tensor sum once."""
    truth = cases(tmp_path / "cases.csv")
    header, _, *rows = page(tmp_path / "cases.csv")
    assert list(truth) == [row[4] for row in rows]
    assert {"fp64_flops": 3_003_000} == truth["daxpy_kernel"]
    assert {"fp16_flops": 2_816_000} == truth["half2_kernel"]
    summed = [name for name in header if "tensor_src" in name and "sparsity" not in name]
    for row in rows[2:]:
        fields = dict(zip(header, row, strict=True))
        tensor = [int(fields[name].replace(",", "")) for name in summed if fields[name]]
        assert {"tensor_flops": sum(tensor)} == truth[row[4]]
    # Read back, each launch has the operations of its case, and of no other; the run says that it is simulated.
    run = perfkit.load(tmp_path / "cases.csv")
    columns = ["fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops"]
    found = run.launches.set_index("full_name")[columns]
    assert truth == {name: row.dropna().to_dict() for name, row in found.iterrows()}
    assert any("simulated" in note for note in run.notes)
