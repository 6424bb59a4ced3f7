"""What an NVIDIA H200 and an H100 measured: the programs with planted causes, and how long their steps took."""

import json
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from perfkit.report.notebooks import sample

# Of a truth: the traced and the timed run of a program are two runs. Where the profiler does not matter, their steps
# differ by 1 to 22 %, by 9 % in the median.
ROOM = 0.1
# The rules that tell what was planted: the first one must do so, the others may stand before it.
CASES: dict[str, tuple[str, ...]] = {
    "allocator": ("idle_memory",),
    "attention": ("attention",),
    "checkpoint": ("checkpointing",),
    "elementwise": ("fusion",),
    "host_python": ("idle_host_code",),
    "host_tensors": ("small_operators",),
    "launch_bound": ("small_operators",),
    "layout": ("layout", "fusion"),
    "loader": ("idle_data_loading",),
    "many_syncs": ("small_operators",),
    "pageable": ("copies_pageable",),
    "precision": ("precision",),
    "transposes": ("layout", "fusion"),
}
SECOND: dict[str, tuple[str, ...]] = {
    "anomaly": ("small_operators",),
    "copy_in_line": ("copies_serial",),
    "dense_embedding": ("computation",),
    "few_workers": ("idle_data_loading",),
    "float64": ("precision",),
    "full_sort": ("computation",),
    "gil_thread": ("idle_host_code",),
    "kv_cat": ("layout",),
    "kv_plan": ("idle_host_code",),
    "numpy_metrics": ("idle_host_code",),
    "offload": ("copies_pageable",),
    "one_hot": ("fusion",),
    "recompile": ("compilation",),
    "recompute": ("recomputation",),
}
THIRD: dict[str, tuple[str, ...]] = {
    "bert_finetune": ("launch_blocking",),
    "chatbot_tune": ("idle_host_code",),
    "decode_gqa": ("layout",),
    "detector_multiscale": ("idle_host_code",),
    "graph_readout": ("computation",),
    "longconv_audio": ("computation",),
    "metric_pairs": ("fusion",),
    "prefill_doc": ("attention_mask",),
    "pruned_mlp": ("computation",),
    "recsys_score": ("small_operators",),
    "retrieval_eval": ("copies_pageable",),
    "scorer_amp": ("casts",),
    "short_epochs": ("idle_host_code",),
    "smalllm_pretrain": ("unaligned_products",),
    "unet_seg": ("computation",),
}
CASES |= SECOND | THIRD
# What the advice gains, measured on the same machine: the whole step in a CUDA graph, or under torch.compile.
ADVISED = (
    *(
        (f"{case}-good", "small_operators", "graph")
        for case in ("batch_one", "full_sort", "moe_loop", "rnn_loop")
    ),
    *((f"{case}-bad", "small_operators", "graph") for case in ("batch_one", "deterministic")),
    ("one_hot-bad", "fusion", "compile"),
    ("grad_in_eval-good", "fusion", "compile"),
)


@cache
def archives() -> list[zipfile.ZipFile]:
    return [zipfile.ZipFile(sample(f"{gpu}_cases.zip")) for gpu in ("h100", "h200")]


def extracted(name: str, folder: Path) -> Path:
    """The trace of a program, in a folder."""
    member = f"{name}.pt.trace.json"
    archive = next(each for each in archives() if member in each.namelist())
    return Path(archive.extract(member, folder))


def rows() -> dict[str, Any]:
    """How long the steps of each program took."""
    tables = [json.loads(archive.read("times.json")) for archive in archives()]
    return {name: row for table in tables for name, row in table.items()}


def step_times() -> dict[str, float]:
    """Seconds of a step without the profiler, of one sample or token where steps have several."""
    return {name: row["step_s"] / row.get("units", 1) for name, row in rows().items()}


def faster(times: Mapping[str, float]) -> dict[str, float]:
    """How many times as fast the mended form of each case is."""
    of_bad = {name: time for name, time in times.items() if name.endswith("-bad")}
    cases = {name.removesuffix("-bad"): time for name, time in of_bad.items()}
    return {
        case: time / times[f"{case}-good"]
        for case, time in cases.items()
        if f"{case}-good" in times
    }
