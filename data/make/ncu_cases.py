"""Which launches have counters of every precision, and what do they add up to?

Conventions
-----------
One launch per case: double precision, packed half (each instruction works on two values), tensor cores dense and
sparse, both Hopper instruction kinds at once, counted by their sum and by themselves. The numbers are made up so
that wrong factors and double counting show. FLOP are operations as the vendor's roofline counts them.

Functions
---------
cases      write the file and return what is true of each launch
"""

from __future__ import annotations

from pathlib import Path

from make.ncu import Launch, Value, write

CYCLES = 100_000
HZ = 1_250_000_000
DUR_NS = 80_000

_THREADS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_TENSOR = "sm__ops_path_tensor_{}.sum"

# name -> counters, and the FLOP they stand for
_CASES: dict[str, tuple[dict[str, int], dict[str, float]]] = {
    "daxpy_kernel": (
        {_THREADS.format(op): n for op, n in (("dadd", 1_000), ("dmul", 2_000), ("dfma", 1_500_000))},
        {"fp64_flops": 1_000 + 2_000 + 2 * 1_500_000},
    ),
    "half2_kernel": (
        {_THREADS.format(op): n for op, n in (("hadd", 3_000), ("hmul", 5_000), ("hfma", 700_000))},
        {"fp16_flops": 2 * 3_000 + 2 * 5_000 + 4 * 700_000},
    ),
    "dense_gemm_kernel": (
        {
            _TENSOR.format("src_fp16_dst_fp32"): 67_108_864,
            _TENSOR.format("src_fp16_dst_fp32_sparsity_off"): 67_108_864,
            _TENSOR.format("src_fp16_dst_fp32_sparsity_on"): 0,
        },
        {"tensor_flops": 67_108_864},
    ),
    "sparse_gemm_kernel": (
        {
            _TENSOR.format("src_bf16_dst_fp32"): 33_554_432,
            _TENSOR.format("src_bf16_dst_fp32_sparsity_off"): 0,
            _TENSOR.format("src_bf16_dst_fp32_sparsity_on"): 33_554_432,
        },
        {"tensor_flops": 33_554_432},
    ),
    "hopper_gemm_kernel": (
        {
            _TENSOR.format("src_bf16_dst_fp32"): 5_000_000,
            _TENSOR.format("op_hgmma_src_bf16_dst_fp32_sparsity_off"): 4_000_000,
            _TENSOR.format("op_hmma_src_bf16_dst_fp32_sparsity_off"): 1_000_000,
        },
        {"tensor_flops": 5_000_000},
    ),
}


def cases(path: Path) -> dict[str, dict[str, float]]:
    """Write one launch per case to `path` and return what is true of each: kernel name -> FLOP by column of LAUNCHES.

    A column that is not named was not measured. Every launch takes 80,000 ns: 100,000 cycles at 1.25 GHz.

    Parameters
    ----------
    path
        The CSV file; replaced if it exists.

    Returns
    -------
    dict
        Kernel name to the FLOP columns it has, FLOP.
    """
    launches = [Launch(name, (128, 1, 1), (256, 1, 1)) for name in _CASES]
    count = len(launches)
    metrics: dict[str, list[Value]] = {
        "gpu__time_duration.sum": [DUR_NS] * count,
        "sm__cycles_elapsed.avg": [CYCLES] * count,
        "sm__cycles_elapsed.avg.per_second": [HZ] * count,
    }
    for i, (counters, _) in enumerate(_CASES.values()):
        for name, value in counters.items():
            metrics.setdefault(name, [None] * count)[i] = value
    write(path, launches, metrics, label="perfkit's cases of every precision; no GPU ran")
    return {name: dict(truth) for name, (_, truth) in _CASES.items()}
