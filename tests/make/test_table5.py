"""The rows of the lab report's Table 5 and what the script of the run launches."""

from __future__ import annotations

from collections import Counter

from make.kernels import TABLE_5
from make.mlp_run import PARTS

# total time ns, instances, average, median, minimum, maximum, name: typed from the report
REPORT = """
17880191 1644 10876.0 12192.0  7328 15072 ampere_sgemm_32x32_sliced1x4_tn
14104665  937 15053.0 15584.0 14208 16128 multi_tensor_apply_kernel
 7346991  939  7824.3  7808.0  7137  8832 ampere_sgemm_32x32_sliced1x4_nt
 6900418  938  7356.5  7536.0  6112  8096 reduce_kernel
 5551353  468 11861.9 11871.0 11775 12000 multi_tensor_apply_kernel
 5257664  469 11210.4 11232.0  9728 11456 reduce_kernel
 4226481  468  9030.9  9024.0  8960  9120 ampere_sgemm_64x32_sliced1x4_nt
 3759001 1647  2282.3  2304.0  2111  2624 vectorized_elementwise_kernel
 3660680  469  7805.3  7808.0  7775  8128 ampere_sgemm_32x32_sliced1x4_nn
 3233758 1407  2298.3  2304.0  2175  2432 vectorized_elementwise_kernel
 2549612  469  5436.3  5440.0  5407  5473 ampere_sgemm_128x32_nn
 2421968  548  4419.6  4352.5  2751  5184 nll_loss_forward_reduce_cuda_kernel
 2086008  549  3799.7  3809.0  3615  3872 splitKreduce_kernel
 1738506  938  1853.4  1856.0  1759  1921 vectorized_elementwise_kernel
 1641810  469  3500.7  3520.0  3137  3807 nll_loss_backward_reduce_cuda_kernel
 1456379  549  2652.8  2688.0  2528  2721 softmax_warp_forward
 1103898  469  2353.7  2368.0  2240  2464 softmax_warp_backward
 1009715  469  2152.9  2144.0  2111  2272 vectorized_elementwise_kernel
  499647   79  6324.6  6336.0  5824  6496 reduce_kernel
  365952   79  4632.3  4609.0  4256  4768 reduce_kernel
  205793   79  2605.0  2592.0  2528  2720 unrolled_elementwise_kernel
  166782   79  2111.2  2080.0  2048  2209 vectorized_elementwise_kernel
  164256   78  2105.8  2080.0  2016  2177 vectorized_elementwise_kernel
   11488    1 11488.0 11488.0 11488 11488 ampere_sgemm_32x128_tn
    9184    1  9184.0  9184.0  9184  9184 ampere_sgemm_64x32_sliced1x4_tn
    6368    1  6368.0  6368.0  6368  6368 gemmSN_TN_kernel
    2464    1  2464.0  2464.0  2464  2464 unrolled_elementwise_kernel
    2048    1  2048.0  2048.0  2048  2048 vectorized_elementwise_kernel
"""


def test_rows_are_those_of_the_report() -> None:
    """Total, instances, average to 0.1 ns, median, minimum, maximum and name are the report's, in its order."""
    expected = []
    for line in REPORT.strip().splitlines():
        *numbers, name = line.split()
        expected.append((*map(float, numbers), name))
    actual = [
        (k.total_ns, k.count, round(k.total_ns / k.count, 1), k.median_ns, k.min_ns, k.max_ns, k.name)
        for k in TABLE_5.values()
    ]
    assert expected == actual


def test_sums_are_those_of_the_definitions() -> None:
    """28 rows sum to 87,363,080 ns in 14,245 launches (definitions, section 17)."""
    rows = TABLE_5.values()
    assert (28, 87_363_080, 14_245) == (len(rows), sum(k.total_ns for k in rows), sum(k.count for k in rows))


def test_full_names_are_distinct_and_contain_the_short_ones() -> None:
    """The report prints short names that repeat; written out, all 28 differ."""
    assert len({k.full_name for k in TABLE_5.values()}) == 28
    assert all(k.name in k.full_name for k in TABLE_5.values())


def test_names_of_section_2_3_are_the_reports() -> None:
    """The four names the report discusses begin as it prints them, without its line breaks."""
    assert TABLE_5["gemm_tn"].full_name == "ampere_sgemm_32x32_sliced1x4_tn"
    assert TABLE_5["softmax"].full_name.startswith("void <unnamed>::softmax_warp_forward<float, float, float, 4, 0, 0>")
    assert TABLE_5["relu"].full_name.startswith("void at::vectorized_elementwise_kernel<4, at::<unnamed>::launch_clamp")
    assert TABLE_5["split_k"].full_name.startswith("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, ")


def test_the_scripts_launches_are_the_instances() -> None:
    """469 training steps, 79 test batches and one pass more launch each kernel as often as the report counts."""
    launched: Counter[str] = Counter()
    for _, plan, steps in PARTS:
        for op in plan:
            if op.kind == "kernel":
                launched[op.what] += steps
    assert {key: kernel.count for key, kernel in TABLE_5.items()} == dict(launched)
