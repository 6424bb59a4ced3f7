"""Runs of a framework with planted causes: times, operators and kernels are chosen, so every share is known."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from frames import api_calls, kernels, profile, ranges
from ops import launch, launched, op, ops, python_calls
from sampled import allocated, devices

from perfkit import diagnosis
from perfkit.diagnosis.finding import Finding
from perfkit.profile import Missing
from perfkit.run import Run
from perfkit.selection import Selection, select
from perfkit.tables import API_CALLS

US, MS = 1_000, 1_000_000
BF16 = '["c10::BFloat16","c10::BFloat16"]'
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
GEMM = {"kernel": "product", "family": "gemm", "dtypes": BF16}


def all_of(of: Run | Selection) -> Selection:
    """A run of which all is judged: rules are tested on everything that a test made, not on its loop."""
    return diagnosis.phases.whole(of if isinstance(of, Selection) else select(of))


def told(of: Run | Selection, **options: Any) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnosis.findings(all_of(of), **options)}


def values(of: Run | Selection, **options: Any) -> dict[str, float]:
    return {i: figure.value for i, figure in diagnosis.figures(all_of(of), **options).items()}


def work(name: str, at: int, start: int, dur: int, **more: Any) -> dict[str, Any]:
    """An operator of 2 us that launches a kernel at `at`; `kernel` and `family` are the kernel's, the rest its own."""
    kernel = {"family": more.pop("family", "other"), "in_graph": more.pop("in_graph", False)}
    made = launch(at, start, dur, more.pop("kernel", "work"), rank=more.get("rank", 0))
    span = op(name, at - US, at + US, **more)
    return {"op": span, "call": made["call"], "kernel": {**made["kernel"], **kernel}}


def run(*works: dict[str, Any], reader: str = "torch_trace", **others: Any) -> Run:
    """A run of pieces of `work`; further tables by name, `calls` beside those that launch."""
    of_gpu, calls = launched(*works)
    if "calls" in others:
        calls = API_CALLS.make(pd.concat([calls, api_calls(*others.pop("calls"))]))
    tables = {
        "KERNELS": of_gpu,
        "API_CALLS": calls,
        "OPS": ops(*(each["op"] for each in works if "op" in each)),
    }
    return of_tables(
        reader, **{**tables, **{name.upper(): frame for name, frame in others.items()}}
    )


def of_tables(reader: str = "torch_trace", *missing: Missing, **tables: pd.DataFrame) -> Run:
    """A run of one profile of 1 s with these tables."""
    return Run([profile(reader, "p", 0, 1_000 * MS, {"missing": missing}, **tables)])


def view(**tables: pd.DataFrame) -> Selection:
    """All of a timeline of Nsight Systems with these tables, without GPU metrics."""
    missing = Missing(
        "SAMPLES", "no GPU metrics", "nsys profile --gpu-metrics-devices=all -o report PROGRAM"
    )
    return all_of(
        of_tables("nsys", missing, **{name.upper(): frame for name, frame in tables.items()})
    )


def steps(count: int = 5, length: int = 100 * MS) -> list[dict[str, Any]]:
    """Ranges of the profiler around steps of equal length, from 0 on."""
    return [
        op(f"ProfilerStep#{i}", i * length, (i + 1) * length, kind="step") for i in range(count)
    ]


def in_turn(*parts: tuple[str, int, dict[str, Any]]) -> Run:
    """Operators with kernels of so many ms, back to back from 1 ms on."""
    works, at = [], MS
    for i, (name, length, more) in enumerate(parts):
        works.append(work(name, (1 + 3 * i) * US, at, length * MS, **more))
        at += length * MS
    return run(*works)


def healthy() -> Run:
    """Five steps of 100 ms: 1 ms in the loader, matrix products in bf16 and fused attention back to back."""
    return run(
        *_busy(),
        ranges=ranges(*steps(), *(op(LOADER, i * 100 * MS, i * 100 * MS + MS) for i in range(5))),
    )


def _busy() -> Iterator[dict[str, Any]]:
    """Products of 15 ms and attention of 5 ms, each launched 4 ms before it can start."""
    for i in range(25):
        at = i * 20 * MS
        yield work("aten::mm", max(at - 5 * MS, US), at + 2 * US, 15 * MS - 2 * US, **GEMM)
        attention = {"kernel": "flash_fwd_kernel", "family": "attention", "dtypes": BF16}
        yield work("aten::_flash_attention_forward", at + 4 * US, at + 15 * MS, 5 * MS, **attention)


def waiting_for_input() -> Run:
    """Case 1, five steps of 100 ms: 40 ms in the loader, then five products of 12 ms, launched at once."""
    works = []
    for step in range(5):
        at = step * 100 * MS + 40 * MS
        works += [
            work("aten::mm", at + (1 + 3 * i) * US, at + 12 * i * MS + 20 * US, 12 * MS, **GEMM)
            for i in range(5)
        ]
    loader = (op(LOADER, i * 100 * MS, i * 100 * MS + 40 * MS) for i in range(5))
    return run(*works, ranges=ranges(*steps(), *loader))


def micro_kernels() -> Run:
    """Case 2: three hundred elementwise operators, launched every 20 us, whose kernels last 3 us."""
    names = ("aten::add", "aten::mul", "aten::native_layer_norm")
    return run(
        *(work(names[i % 3], 20 * i * US + US, 20 * i * US + 4 * US, 3 * US) for i in range(300))
    )


def unfused_attention() -> Run:
    """Case 3, ten layers of 10 ms back to back: products of 1 ms and 1 ms, softmax of 4 ms, a linear layer of 4 ms."""
    works = []
    for layer in range(10):
        at = layer * 10 * MS
        parts = (("aten::bmm", 1), ("aten::_softmax", 4), ("aten::bmm", 1), ("aten::addmm", 4))
        for i, (name, length) in enumerate(parts):
            more = {"family": "other", "dtypes": BF16} if "softmax" in name else GEMM
            begin = at + (0, 1, 5, 6)[i] * MS
            works.append(
                work(name, layer * 10 * US + (1 + 2 * i) * US, begin + 90 * US, length * MS, **more)
            )
    return run(*works)


def tokenising(**others: Any) -> Run:
    """Case 4, five requests of 100 ms: 60 ms in the tokenizer, then a product of 40 ms."""
    name = "transformers/tokenization_utils_base.py(2403): __call__"
    works = [
        work("aten::mm", i * 100 * MS + 60 * MS - US, i * 100 * MS + 60 * MS, 40 * MS, **GEMM)
        for i in range(5)
    ]
    calls = (op(name, i * 100 * MS, i * 100 * MS + 60 * MS - 3 * US) for i in range(5))
    return run(*works, python_calls=python_calls(*calls), **others)


def leaking(kept: int, *, but: int = -1) -> Run:
    """Twelve steps of 100 ms that hold 1,000 bytes, 500 more for a while, and keep some, but in one step."""
    works, levels, base = [], [(0, 1_000, 2_000)], 1_000
    for i in range(12):
        at = i * 100 * MS
        works.append(work("aten::mm", at + US, at + 10 * US, 99 * MS, **GEMM))
        levels.append((at + 10 * MS, base + 500, 4_000))
        base += kept if i != but else 0
        levels.append((at + 90 * MS, base, 4_000))
    card = devices("A100", memory_bytes=10_000)
    return run(*works, ranges=ranges(*steps(12)), samples=allocated(*levels), devices=card)


def reading_values(until_us: int, **more: Any) -> Run:
    """Ten kernels of 50 us every 100 us, each waited for from its launch to `until_us`, for a value that is read."""
    works, calls = [], []
    for i in range(10):
        at = i * 100 * US
        works.append(work("aten::mm", at + US, at + 5 * US, 50 * US, **GEMM))
        length = (until_us - 10) * US
        calls.append({"start_ns": at + 10 * US, "dur_ns": length, "name": "cudaStreamSynchronize"})
    return run(*works, calls=calls, **more)


def replays(empty: int, *, pause: int = 2 * US, reader: str = "torch_trace") -> Run:
    """Ten graphs of two kernels of 400 us, launched every ms; of the first `empty` nothing was recorded.

    A product runs before them, and a wait after the seventh lasts until the next.
    """
    first = work("aten::mm", US, 2 * US, 8 * US, **GEMM)
    nodes, calls = [{"correlation": 99, **first["kernel"]}], [{"correlation": 99, **first["call"]}]
    calls.append(
        {"start_ns": 6 * MS + 10 * US, "dur_ns": 900 * US, "name": "cudaStreamSynchronize"}
    )
    for i in range(10):
        calls.append(
            {"start_ns": i * MS, "dur_ns": 5 * US, "name": "cudaGraphLaunch", "correlation": i}
        )
        node = {
            "dur_ns": 400 * US,
            "in_graph": True,
            "family": "gemm",
            "name": "ampere_sgemm_128x64_tn",
        }
        starts = [i * MS + 10 * US, i * MS + 410 * US + pause]
        nodes += [{"start_ns": start, "correlation": i, **node} for start in starts if i >= empty]
    return of_tables(
        reader, KERNELS=kernels(*nodes), API_CALLS=api_calls(*calls), OPS=ops(first["op"])
    )
