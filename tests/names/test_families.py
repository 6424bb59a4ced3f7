"""The kind of work a name tells."""

from __future__ import annotations

import pytest

from perfkit.names.families import FAMILIES, family

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 2ul> >(int)"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, {}, float>(int)"

NAMES = {
    "gemm": [
        "ampere_sgemm_32x32_sliced1x4_tn",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align1>(T1::Params)",
        "nvjet_tst_192x192_64x3_1x2_h_bz_coopB_NTN",
        "Cijk_Alik_Bljk_BBS_BH_MT16x16x256_MI16x16x1",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(int)",
        "matrixMulCUDA(float*, float*, float*, int)",
        "triton_tem_fused_mm_0",
    ],
    "convolution": [
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x32x64_cudnn",
        "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::wgrad_indexed::Kernel_traits<int>>(T1::Params)",
        "void cutlass_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc>(T1::Params)",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "void fft2d_r2c_32x32<float, false, 1u, true>(float2*)",
        "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32",
        "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)",
    ],
    "attention": [
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(int)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x64x64",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(int)",
        "void BatchDecodeWithPagedKVCacheKernel<0, 2>(T9)",
        "kernel_unified_attention_2d",
    ],
    "normalisation": [
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512>(int)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
        "MIOpenBatchNormFwdTrainSpatial",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_1XEEEEvT_",
        "triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1",
        ELEMENTWISE.format("at::native::batch_norm_calc_invstd(at::Tensor const&)::{lambda(float)#1}"),
    ],
    "softmax": ["void <unnamed>::softmax_warp_forward<float, 4>(T2 *)", "triton_per_fused__softmax_1"],
    "elementwise": [
        ELEMENTWISE.format("at::native::FillFunctor<float>"),
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
        "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>(float*)",
        "triton_poi_fused__scaled_dot_product_flash_attention_add_view_10",
        "void fbgemm_gpu::(anonymous namespace)::_FP8rowwise_to_float_cuda_kernel<float>(int)",
        "vectorAdd(const float *, const float *, float *, int)",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>, 4>>(int)",
        "void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float const*)",
        "void cub::DeviceScanKernel<cub::AgentScanPolicy<128>>(int)",
        "nvfuser_inner_persistent_f0_c1_r0_g2",
        FOREACH.format("LpNormFunctor<float, (NormType)1>"),
    ],
    "embedding": [
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float>(int)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<long, long, unsigned int, 1>(int)",
    ],
    "optimizer": [
        FOREACH.format("FusedAdamMathFunctor<float, 4>"),
        FOREACH.format("BinaryOpListAlphaFunctor<float, 2, 2, 0>"),
        "void multi_tensor_apply_kernel<TensorListMetadata<3>, SGDFunctor<3, float, float>>(int)",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "mscclRCCLKernel(int)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(int)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)",
        "void deep_ep::intranode::combine<8>(int)",
        "nvshmemi_transfer_rma_kernel(int)",
    ],
    "copy": [
        ELEMENTWISE.format("at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"),
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false>(int)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1>(float*)",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(int)",
        "triton_poi_fused__unsafe_view_clone_slice_transpose_11",
        FOREACH.format("CopyFunctor<int, long, 2, 1, 1>"),
    ],
    "other": ["jacobi_kernel(float*, int)", "", "triton__0d1d2d", "at::cuda::(anonymous namespace)::spin_kernel(long)"],
}


@pytest.mark.parametrize(("expected", "full_name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_family(expected: str, full_name: str) -> None:
    """The function name decides, for generic kernels together with the functor or operation."""
    assert expected == family(full_name)


def test_every_family_is_known_and_reached() -> None:
    """FAMILIES lists each family once; each has a kernel above."""
    assert sorted(FAMILIES) == sorted(NAMES)
    assert len(FAMILIES) == len(set(FAMILIES))


def test_communication_needs_the_function_name() -> None:
    """Definitions, section 3: nccl in the function name, in any case; one in a type or namespace is no criterion."""
    assert "communication" == family("myNCCLKernel(int)")
    assert "other" == family("void work<ncclComm>(ncclComm *)")
    assert "other" == family("nccl_tests::work(int)")
