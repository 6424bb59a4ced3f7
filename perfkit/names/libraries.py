"""The library that a kernel comes from.

The rules are tried in order on ``scope::function`` and, behind a space, the template arguments; the first that matches
names the library. A kernel of the user's own program has none. Rules must be sure: a library's kernels lose their
parameter lists in `perfkit.names.short`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from perfkit.names.parsing import qualified

_NAMESPACES = re.compile(
    r"(?:at|c10|torch|std|cub|thrust|flash|pytorch_flash|vllm|sgl\w*|fbgemm_gpu|rocprim|hipcub|ck|ck_tile|aiter"
    r"|tensorrt_llm|flashinfer|cute|at_cuda_detail|cutlass\w*|xmma\w*|cudnn\w*|cask\w*|cublas\w*|nvfuser|apex|deep_ep)"
)
# Inner namespaces that only say where the code lies, among them versions such as CUB_200500_NS.
_FILLERS = re.compile(
    r"native|detail|impl|(?:binary_)?internal|ops|cnn|kernels|templates|cuda|headeronly|memory|tensor_operation|device"
    r"|[A-Z]+_\d{4,}\w*"
)
_REACH = 400  # longer names and arguments of arguments say nothing about the library

LIBRARY_RULES: tuple[tuple[str, str], ...] = (
    ("NCCL", r"^[nr]ccl"),
    ("NVSHMEM", r"^nvshmem"),
    ("DeepEP", r"^deep_ep::"),
    ("Triton (TorchInductor)", r"^triton_(?:poi|red|per|tem|for|split_scan)_"),
    ("Triton", r"^triton_|^\w+_triton$"),
    ("nvFuser", r"^nvfuser_"),
    ("FlashInfer", r"^flashinfer::|^fmhaSm\d|^bmm_\w+_sm1\d\d|^Batch(?:Decode|Prefill)With|^Persistent\w+MergeStates"),
    ("FlashInfer", r"^moe::dev::"),
    ("TensorRT-LLM", r"^tensorrt_llm::"),
    ("FlashAttention", r"^(?:pytorch_)?flash::|^flash_(?:fwd|bwd)_"),
    ("cuDNN", r"^(?:cudnn|cask_cudnn|cutlass\w*_cudnn|xmma_cudnn)\w*::|^\w*scudnn_|^\w+_cudnn(?:_infer|_train)?$"),
    ("cuDNN", r"^sm\d+_xmma_(?:fprop|dgrad|wgrad)|^cudnn_|^(?:im|ex)plicit_convolve_sgemm|^wgrad_alg\d_engine"),
    ("cuDNN", r"^fft[12]d_[cr]2[cr]_|^(?:nchwToNhwc|nhwcToNchw)Kernel|^im2col4d_kernel|^flip_filter"),
    ("cuDNN", r"^pointwise_mult_and_sum_c"),
    ("cuBLASLt", r"^cublasLt::|^epilogue::impl::globalKernel"),
    ("cuBLAS", r"^(?:maxwell|volta|turing|ampere|hopper)_\w*gemm|^\w+_cublas$|^nvjet_|^internal::gemvx::"),
    ("cuBLAS", r"^splitKreduce_kernel|^gemm(?:SN|k1)_|^gemv(?:2|NSP)|^\w+ .*\bcublas[A-Z]|^sgemm_largek_lds64"),
    ("cuBLAS", r"^scal_kernel |^transpose_readWrite_alignment_kernel "),
    ("CUTLASS", r"^cutlass|^Kernel2? cutlass_"),
    ("Tensile (rocBLAS, hipBLASLt)", r"^Cijk_"),
    ("MIOpen", r"^MIOpen|^igemm_(?:fwd|bwd|wrw)_gtc|^batched_transpose_\d|^Im2d2Col|^SubTensorOp"),
    ("MIOpen", r"^transpose_[CN]{2}HW2"),
    ("Composable Kernel", r"^ck(?:_tile)?::"),
    ("AITER", r"^aiter::|^paged_attention_ll4mi"),
    ("vLLM", r"^vllm::|^kernel_unified_attention_\dd"),
    ("SGLang", r"^sgl\w*::"),
    ("FBGEMM", r"^fbgemm_gpu::|^split_embedding_|^bounds_check_indices_kernel |^permute_pooled_embs"),
    ("FBGEMM", r"^linearize_index_k"),
    ("CUB", r"^(?:\w+::)?cub::"),
    ("Thrust", r"^thrust::"),
    ("rocPRIM", r"^(?:rocprim|hipcub)::"),
    ("PyTorch", r"^(?:at|c10|torch)::|^(?:vectorized|unrolled)_elementwise_kernel |^softmax_warp_(?:for|back)ward "),
    ("PyTorch", r"^cunn_"),
    ("PyTorch", r"^elementwise_kernel\w* .*(?:gpu_kernel_impl|arange_cuda|at::native)|^reduce_kernel .*\bReduceOp<"),
    ("PyTorch", r"^distribution_elementwise_grid_stride_kernel |^fmha_cutlass[FB]_"),
    ("Apex", r"^multi_tensor_apply_kernel TensorListMetadata|^apex::"),
)
_COMPILED_LIBRARIES = tuple((library, re.compile(pattern, re.DOTALL)) for library, pattern in LIBRARY_RULES)


@lru_cache(maxsize=4096)
def library_of(full_name: str) -> str:
    """Return the library a kernel comes from, or the empty string when its name does not say."""
    parts = qualified(full_name)
    args = ", ".join(parts[-1].args)[:_REACH]
    text = "::".join(part.name for part in parts)[:_REACH] + (" " + args if args else "")
    return next((library for library, pattern in _COMPILED_LIBRARIES if pattern.search(text)), "")


def is_library(namespace: str) -> bool:
    """Return whether a namespace belongs to a library, whose kernels are known by their own names."""
    return _NAMESPACES.fullmatch(namespace) is not None


def is_filler(namespace: str) -> bool:
    """Return whether a namespace never tells two kernels of a library apart."""
    return is_library(namespace) or _FILLERS.fullmatch(namespace) is not None
