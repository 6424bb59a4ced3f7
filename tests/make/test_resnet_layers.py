"""The simulated network: its layers, and what a step of it asks of the GPU."""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest

from make import resnet_work
from make.resnet_work import BLOCKS, CONVOLUTIONS, LAUNCHED, NAMES, PARAMETERS, SPEEDS, STEM, TENSOR
from perfkit.workloads import Plan, flops

# section 3.3 of the report, up to where it cuts each name off; text recognition lost an `_f32` in the second name of
# fprop and the third of dgrad, and put a blank into "tilesize 64x32x64"
REPORT = {
    "fprop": (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x32x64_stage5_war",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x32x64_stage5_warpsize2x2",
        "sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x32x16_s",
    ),
    "dgrad": (
        "void cudnn::detail::dgrad2d_alg1_1<float, (int)0, (int)6, (int)5, (int)4, (int)4, (bool)0, ",
        "void cutlass_5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x64_32x5_nhwc_unity_str",
        "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x32x64_stage5_warpsize2x2",
    ),
    "wgrad": (
        "void cudnn::cnn::wgrad_alg1_engine<float, float, (int)128, (int)5, (int)5, (int)3, (int)3, (int)3, ",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x32x64_stage5_war",
        "void cutlass_5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x64_16x6_nhwc_align4>(",
    ),
}


def test_layers_are_the_networks() -> None:
    """20 convolutions and 11,689,512 parameters, as torchvision says; three blocks have a shortcut of their own."""
    assert (20, 11_689_512) == (len(CONVOLUTIONS), PARAMETERS)
    assert 3 == sum(block.shortcut is not None for block in BLOCKS)
    assert [56, 56, 28, 28, 14, 14, 7, 7] == [block.second.side for block in BLOCKS]


@pytest.mark.parametrize("batch", [1, 64, 128])
def test_operations_are_the_formulas(batch: int) -> None:
    """Convolutions and the linear layer do what the formula of the workload says, forward and backward."""
    inference = resnet_work.forward(batch, training=False)
    products = ("fprop", "dgrad", "wgrad", "linear")
    assert flops.step(Plan("resnet18", mode="inference"), batch) == sum(
        launch.flops for launch in inference if launch.key.startswith(products)
    )
    step = [*resnet_work.forward(batch, training=True), *resnet_work.backward(batch)]
    assert flops.step(Plan("resnet18"), batch) == sum(x.flops for x in step if x.key.startswith(products))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed (perfkit[torch])")
def test_layers_are_the_workloads() -> None:
    """The model that `perfkit.workloads` trains has the same convolutions, in the same order."""
    from perfkit.workloads.models import ResNet18

    found = [p.shape for name, p in ResNet18(classes=1000).named_parameters() if p.ndim == 4]
    assert Counter((c.outputs, c.inputs, c.kernel, c.kernel) for c in CONVOLUTIONS) == Counter(map(tuple, found))


def test_a_step_launches_what_a_step_of_the_network_launches() -> None:
    """Each convolution has one kernel forward and one for its weights, all but the first one for its input."""
    forward = [launch.key for launch in resnet_work.forward(128, training=True)]
    backward = [launch.key for launch in resnet_work.backward(128)]
    assert 20 == sum(key.startswith("fprop") for key in forward)
    assert (19, 20) == tuple(sum(key.startswith(kind) for key in backward) for kind in ("dgrad", "wgrad"))
    assert (20, 17, 8) == tuple(forward.count(key) for key in ("norm", "relu", "add"))
    assert (20, 17) == tuple(backward.count(key) for key in ("norm_back", "relu_back"))


def test_whole_tiles_are_not_less_than_the_formula() -> None:
    """Tiles do at least what is needed; where 128 images of 56 x 56 pixels fit tiles exactly, no more than that."""
    launches = [x for x in resnet_work.forward(128, training=True) if x.key in TENSOR]
    assert all(x.tiled_flops >= x.flops for x in launches)
    assert all(x.tiled_flops == x.flops for x in launches if x.key == "fprop")
    (stem,) = [x for x in launches if x.key == "fprop_wo_smem"]
    assert stem.tiled_flops == 128 * STEM.flops // 147 * 152 * 1  # 3 * 7 * 7 = 147 products in steps of 8 are 152


def test_a_forward_pass_is_as_quick_as_the_report_measured() -> None:
    """The kernels of a pass fit into its 5.3, 9.3 and 14.5 ms, and at 128 images fill them."""
    busy = {b: sum(map(resnet_work.duration_ns, resnet_work.forward(b, training=False))) for b in (1, 64, 128)}
    assert all(busy[batch] < measured for batch, measured in ((1, 5_322_595), (64, 9_327_803), (128, 14_488_757)))
    assert busy[128] > 0.9 * 14_488_757


def test_every_kernel_is_complete() -> None:
    """Each name has a launch configuration and a speed below the GPU's peaks."""
    assert set(NAMES) == set(SPEEDS) == set(LAUNCHED)
    assert len(set(NAMES.values())) == len(NAMES)
    assert all(s.bytes_per_s < 1.935e12 and s.flops_per_s < 156e12 for s in SPEEDS.values())
    assert all(s.flops_per_s <= 19.5e12 for key, s in SPEEDS.items() if key not in TENSOR)


def test_the_reports_kernels_lead_their_kinds_in_its_order() -> None:
    """The three most expensive kernels of fprop, dgrad and wgrad in a training step are the report's."""
    time: Counter[str] = Counter()
    for launch in (*resnet_work.forward(128, training=True), *resnet_work.backward(128)):
        time[launch.key] += round(resnet_work.duration_ns(launch))
    for kind, names in REPORT.items():
        leading = [NAMES[key] for key, _ in time.most_common() if key.startswith(kind)][:3]
        assert all(full.startswith(name) for full, name in zip(leading, names, strict=True)), leading
