"""Settings, formats and operators that make a program slow: runs with planted causes, each beside its mended form."""

import pytest
from diagnosis.traces import BF16, GEMM, MS, US, run, told, work
from ops import op, ops

from perfkit import diagnosis
from perfkit.diagnosis.headline import headline, ranked
from perfkit.diagnosis.rules.kernels import SLOW_PATHS
from perfkit.run import Run
from perfkit.selection import select

KERNELS = {
    "bluestein": "multi_bluestein_fft<256u>",
    "index_gradient": "indexing_backward_kernel_stride_1<float>",
}
KERNELS |= {
    "index_add": "indexFuncLargeIndex<float>",
    "sparse": "cusparse::csrmm_alg2_kernel<false>",
}


def debugged(after_us: int = 2, count: int = 60) -> Run:
    """Kernels of 9 us every 40 us; each launch begins 5 us before its kernel and returns so long after its end."""
    works = [work("aten::mul", (40 * i + 2) * US, (40 * i + 7) * US, 9 * US) for i in range(count)]
    for each in works:
        each["call"]["dur_ns"], each["op"]["dur_ns"] = (14 + after_us) * US, 25 * US
    return run(*works)


def test_launches_that_wait_for_their_kernels_come_first() -> None:
    found = told(debugged())
    of, small = found["launch_blocking"], found["small_operators"]
    assert "CUDA_LAUNCH_BLOCKING" in of.advice["immediate"][0]
    assert [1.0, pytest.approx(60 * 16 / 2369)] == [figure.value for figure in of.evidence]
    # The calls take 960 of 2,369; of the other 1,409 the profiler takes all but one part in 2.7 (`slowing`).
    assert of.gain.high == pytest.approx(1 + 960 / (1409 / 2.7))
    assert ranked(found.values())[0] is of
    assert ("medium", "medium", 1.0) == (small.severity, small.confidence, small.gain.low)
    assert "idle_launch" not in found, "no second finding on the same calls"
    assert not any(
        "launch_blocking" in told(other) for other in (debugged(after_us=-1), debugged(count=49))
    )


def converting(of: str = "[[64,4096],[512,4096],[]]", to: str = "c10::BFloat16") -> Run:
    """Ten products of 1 ms under autocast: in each, 2 ms convert a tensor of 512 x 4096, inside of aten::linear."""
    works = []
    for at in range(0, 30, 3):
        cast = {
            "shapes": "[[512,4096],[512,4096],[]]",
            "dtypes": f'["{to}","float","Scalar"]',
            "family": "copy",
        }
        works += [work("aten::copy_", (30 * at + 5) * US, (at + 1) * MS, 2 * MS, **cast)]
        works += [
            work("aten::mm", (30 * at + 15) * US, (at + 3) * MS, MS, family="gemm", dtypes=BF16)
        ]
    linear = [
        op("aten::linear", 30 * at * US, (30 * at + 25) * US, shapes=of) for at in range(0, 30, 3)
    ]
    return run(*works, ops=ops(*linear, *(each["op"] for each in works)))


def test_casts_of_weights_inside_of_other_operators_are_no_moves() -> None:
    found = told(converting())
    assert (
        "aten::linear 66.7 %. They convert their weights to another type, 10 times"
        in found["casts"].explanation
    )
    assert (False, pytest.approx(3.0)) == ("layout" in found, found["casts"].gain.high)
    assert "model.to(torch.bfloat16)" in found["casts"].advice["immediate"][0]
    assert not {"layout", "casts"} & {*told(converting("[[512,4096],[64,4096],[]]"))}, (
        "autocast converts inputs anyway"
    )
    assert {"layout", "casts"} & {*told(converting(to="float"))} == {"layout"}


def padded(size: int = 50_257) -> Run:
    """Ten products with a dimension of this size, 8 ms each; between them one of 0.1 ms at 687 TFLOP/s."""
    works, more = [], {"family": "gemm", "dtypes": BF16}
    for at in range(10):
        of = {"shapes": f"[[8192,1024],[1024,{size}]]", "strides": "[[1024,1],[1,1024]]"}
        works += [work("aten::mm", (30 * at + 5) * US, (10 * at + 1) * MS, 8 * MS, **of, **more)]
        of |= {"shapes": "[[8192,1024],[1024,4096]]"}
        works += [work("aten::mm", (30 * at + 15) * US, (10 * at + 9) * MS, MS // 10, **of, **more)]
    return run(*works)


def test_products_with_unaligned_rows_name_the_size_that_is_padded() -> None:
    of = told(padded())["unaligned_products"]
    assert of.advice["immediate"][0] == "Pad the dimension of 50257 to 50304, a multiple of 64"
    rate, fast = (
        2 * 8192 * 1024 * size / seconds for size, seconds in ((50_257, 8e-3), (4096, 1e-4))
    )
    assert [pytest.approx(rate), pytest.approx(fast)] == [
        figure.value for figure in of.evidence[1:]
    ]
    assert of.gain.share == pytest.approx(80 / 98.1 * (1 - rate / fast), rel=0.01)
    assert "unaligned_products" not in told(padded(50_304))


def masked(batch: int = 4, heads: int = 16) -> Run:
    """Attention of 6 ms with 16 heads, 2,048 positions and a mask, and a product of 4 ms."""
    query, mask = "[4,16,2048,64]", f"[{batch},{heads},2048,2048]"
    of = {
        "shapes": f"[{query},{query},{query},{mask}]",
        "dtypes": f"[{','.join(4 * BF16[1:-1].split(',')[:1])}]",
    }
    attention = work("aten::scaled_dot_product_attention", US, MS, 6 * MS, family="attention", **of)
    return run(attention, work("aten::mm", 20 * US, 7 * MS, 4 * MS, **GEMM))


def test_a_mask_larger_than_what_it_masks_is_told() -> None:
    of = told(masked())["attention_mask"]
    assert of.title == "Attention with a mask larger than its input takes 60.0 % of the kernel time"
    assert "[4, 16, 2048, 2048] and 537 MB. Query, key and value have 50.3 MB" in of.explanation
    assert (pytest.approx(2.5), True) == (
        of.gain.high,
        "is_causal=True" in of.advice["immediate"][0],
    )
    assert "attention_mask" not in told(masked(1, 1))


@pytest.mark.parametrize("name", SLOW_PATHS)
def test_a_known_slow_path_has_its_remedy_in_the_verdict(name: str) -> None:
    kernel, remedy = KERNELS[name], SLOW_PATHS[name].remedy
    for share, is_named in ((6, True), (2, False)):
        works = [work("aten::op", US, MS, share * MS, kernel=kernel, shapes="[[8,64]]")]
        works += [work("aten::relu", 30 * US, (share + 1) * MS, (10 - share) * MS)]
        made = select(run(*works))
        (of,) = diagnosis.findings(made)
        assert (of.advice["immediate"][0] == remedy) is is_named
        assert (f"{share}0.0 % of the kernel time goes into" in of.explanation) is is_named
        said = headline(made, diagnosis.figures(made), [of]).verdict
        assert ("60.0 % of the kernel time in aten::op" in said and remedy in said) is is_named
