"""Byte-order marks: Windows' editors write one before UTF-8, PowerShell redirects in UTF-16 (made files)."""

import codecs
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from readers import dcgm_files, deepspeed_files, nccl_files, smi_files

import perfkit

Make = Callable[[Path], Path]
MADE: dict[str, Make] = {
    "rocm_smi": lambda path: smi_files.rocm(path, smi_files.card(), smi_files.card()),
    "nvidia_smi dmon": lambda path: smi_files.dmon(path, *smi_files.ticks()),
    "nvidia_smi query": lambda path: smi_files.query(path, *smi_files.moments()),
    "dcgm dmon": lambda path: dcgm_files.dmon(path, *dcgm_files.ticks()),
    "dcgm scrape": lambda path: dcgm_files.scrape(path, *dcgm_files.page()),
    "Prometheus": lambda path: dcgm_files.stored(path),
    "DeepSpeed": lambda path: nccl_files.written(path, deepspeed_files.report()),
    "Megatron": lambda path: nccl_files.written(path, deepspeed_files.training()),
    "nccl-tests": lambda path: nccl_files.written(path, nccl_files.table()),
}
MARKED: dict[str, Callable[[bytes], bytes]] = {
    "UTF-8": lambda data: codecs.BOM_UTF8 + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16 big-endian": lambda data: codecs.BOM_UTF16_BE + data.decode().encode("utf-16-be"),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("mark", MARKED.values(), ids=MARKED)
def test_a_log_reads_the_same_behind_a_mark(
    make: Make, mark: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = make(tmp_path / "plain.json")
    marked = tmp_path / "marked.json"
    marked.write_bytes(mark(path.read_bytes()))
    plain, found = perfkit.load(path), perfkit.load(marked)
    for table in ("SAMPLES", "DEVICES", "COLLECTIVES", "MODULES"):
        pd.testing.assert_frame_equal(plain.table(table), found.table(table))
    assert len(plain.table("SAMPLES")) + len(plain.table("COLLECTIVES"))
