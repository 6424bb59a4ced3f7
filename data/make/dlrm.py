"""What would HPCToolkit have recorded of a DLRM that is trained on an H100 for 100 steps?

Conventions
-----------
The program is the kind that a published executive summary was made from: PyTorch's DLRM with embedding bags, two
MLPs and their interaction, trained by one process that copies from pageable memory and waits. Its database has what
the public one lacks, CPU time beside GPU metrics, so that every question has an answer. All is invented and derived
from one list of operations in integer ns: call paths, durations, samples and traces agree with each other and with
the truth written beside. The database's description says that it is simulated.

Functions
---------
dlrm    write the database and its truth
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from make import hpctoolkit
from make.dlrm_program import run
from make.dlrm_truth import truth
from make.dlrm_values import threads

NAME = "dlrm_h100"
DATABASE = "hpctoolkit-dlrm-database"
LABEL = "perfkit simulate dlrm: 100 training steps of an invented DLRM on an H100; no GPU ran"
T0_UNIX_NS = 1_752_580_800_000_000_000  # noon UTC of the day of the executive summary, 15 July 2025


def dlrm(folder: Path, *, seed: int = 0) -> Path:
    """Write the database `hpctoolkit-dlrm-database` and `dlrm_h100.truth.json` into `folder`; return it.

    Files of these names are replaced, once the new ones are complete; others in the folder stay.

    Parameters
    ----------
    folder
        Made if it does not exist.
    seed
        Of all durations and of the order of threads and contexts. The same seed gives the same bytes.

    Returns
    -------
    Path
        `folder`.
    """
    rng = np.random.default_rng(seed)
    ops, sites, end = run(rng)
    crew = threads(ops, end)
    order = rng.permutation(len(crew)).tolist()
    tree = sites.paths.tree()
    database = hpctoolkit.Database(
        tree=sites.paths.tree(rng.permutation(len(tree)) + 1),
        metrics=hpctoolkit.NVIDIA,
        threads=[crew[number] for number in order],
        title="python3.11",
        description=f"SIMULATED {LABEL}",
        t0_unix_ns=T0_UNIX_NS,
    )
    folder.mkdir(parents=True, exist_ok=True)
    found = {"simulated": LABEL, "seed": seed, "t0_unix_ns": T0_UNIX_NS, **truth(ops, end, order)}
    part = folder / f".{NAME}.truth.json.part"
    part.write_text(json.dumps(found, indent=1) + "\n")
    hpctoolkit.write(folder / DATABASE, database)
    os.replace(part, folder / f"{NAME}.truth.json")
    return folder
