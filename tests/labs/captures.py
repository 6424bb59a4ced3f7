"""Write the captures of the lab of cases: `python -m tests.labs.captures data/cases.zip`.

Each is a program of the adversary (tests/adversary), recorded as Nsight Systems records it. Their names say nothing,
and only this file knows what was planted.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from adversary.cases import plan

PLANTED = {
    "case_01": "hidden_loader",
    "case_02": "loader_pytorch",
    "case_03": "honest_wait",
    "case_04": "full_queue",
    "case_05": "hidden_pageable",
    "case_06": "overlapped_reduce",
    "case_07": "late_rank",
    "case_08": "throttled",
    "case_09": "few_blocks",
    "case_10": "slow_first_step",
    "case_11": "malloc_in_loop",
    "case_12": "checkpoints",
    "case_13": "graph_steps",
    "case_14": "uneven_gpus",
}
TIME = (
    2026,
    1,
    1,
    0,
    0,
    0,
)  # of each file in the archive, so that equal captures make equal archives


def write(archive: Path) -> None:
    """Write all captures into one archive, a folder per case."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(archive, "w") as out:
        for case, name in PLANTED.items():
            place = Path(folder, case)
            place.mkdir()
            made = plan(name, 0)
            made.write(made.run(), place)
            for file in sorted(place.iterdir()):
                entry = zipfile.ZipInfo(f"{case}/{file.name}", TIME)
                out.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
