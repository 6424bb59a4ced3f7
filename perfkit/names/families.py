"""What kind of work does a kernel do?

Conventions
-----------
The family is judged from the name alone: the rules below are tried in order on ``scope::function``
and, behind a space, the functor of a generic kernel (`perfkit.names.shortening.functor`); the first
that matches decides. Case does not matter. Names that no rule knows are ``other``.

Functions
---------
family   one of FAMILIES
"""

from __future__ import annotations

import re

from perfkit.names.parsing import base, qualified
from perfkit.names.shortening import functor

FAMILIES = (
    "gemm",
    "convolution",
    "attention",
    "normalisation",
    "softmax",
    "elementwise",
    "reduction",
    "embedding",
    "optimizer",
    "communication",
    "copy",
    "other",
)
_REACH = 400

# The criterion of HTA and TraceLens, on the function name without scopes.
_NCCL = re.compile(r"nccl|rccl", re.IGNORECASE)
_LAYOUT = "(?:to_copy|clone|copy|cat|slice|stack|transpose|permute|view|unsafe_view|unsqueeze|squeeze|split|expand)"

RULES: tuple[tuple[str, str], ...] = (
    # TorchInductor lists every operator it saw near the kernel, also those other kernels execute:
    # only the prefix and, for reductions, the reducing operator say what the kernel itself does.
    ("attention", r"^triton_tem_\w*(?:attention|flex|sdpa)"),
    ("convolution", r"^triton_tem_\w*conv"),
    ("gemm", r"^triton_tem_"),
    ("normalisation", r"^triton_(?:red|per)_\w*(?:_norm|mean\w*_pow\w*_rsqrt|var_mean|welford)"),
    ("softmax", r"^triton_(?:red|per)_\w*softmax"),
    ("reduction", r"^triton_(?:red|per)_"),
    ("copy", rf"^triton_poi_fused(?:_+{_LAYOUT})+_\d+$"),
    ("elementwise", r"^triton_(?:poi|for)_"),
    (
        "communication",
        r"nvshmem|^deep_?ep::|deep_ep::|\b(?:inter|intra)node::|cross_device_reduce|multimem_|quick_?reduce",
    ),
    ("communication", r"^\S*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all)"),
    # Writing the key-value cache moves data, whichever attention reads it later.
    ("copy", r"reshape_and_cache|store_kv_?cache|concat_and_cache"),
    (
        "attention",
        r"flash_?(?:fwd|bwd|attn|attention|fprop|bprop)|\bflash::|fmha|sdpa|attention|attn|pagedkv|mergestates",
    ),
    ("attention", r"\b(?:single|batch)(?:decode|prefill)|_fwd_(?:grouped_)?kernel_stage\d|\bmha_(?:fwd|bwd)"),
    # Rotary position embedding multiplies; it looks nothing up.
    ("elementwise", r"rotary|\b(?:fused_)?rope"),
    ("embedding", r"embedding|\bembs?_|_embs_|indexselect|index_select|vectorized_gather|bounds_check_indices"),
    ("embedding", r"linearize_index|krn_partial|sum_and_scatter|compute_grad_weight"),
    # A fused loop over a list of tensors is a step of an optimiser unless it only copies or measures.
    ("copy", r"multi_tensor_apply_kernel \S*copy|multi_tensor_apply_kernel UnaryOpFunctor<long"),
    ("reduction", r"multi_tensor_apply_kernel \S*norm|lpnorm"),
    ("optimizer", r"multi_tensor_apply|adam|sgd|adagrad|adadelta|rmsprop|adafactor|lamb_|lambfunctor|lionfunctor"),
    ("normalisation", r"batch_?norm|layer_?norm|group_?norm|instance_?norm|rms_?norm|\bbn_(?:fw|bw)|rowwisemoments"),
    ("normalisation", r"gammabeta|fusedparamscuda|internalgradientscuda|cucompute\w*grad|welford"),
    ("convolution", r"fprop|dgrad|wgrad|implicit_gemm|winograd|conv(?:olve|olution|\dd|_|\d)|s?cudnn_\d|scudnn"),
    (
        "convolution",
        r"cutlass\w*_cudnn\w*::|\bigemm_(?:fwd|bwd|wrw)_|im2(?:d2)?col|fft[12]d_|flip_filter|compute\w*offsetskernel",
    ),
    ("convolution", r"pointwise_mult_and_sum_complex|xdlops_bwd_weight|implicitgemm"),
    ("softmax", r"softmax"),
    # splitKreduce adds the partial results of a GEMM whose K loop was split: it is the GEMM's second half.
    ("gemm", r"(?<!fb)gemm|gemv|splitk|split_k|\bcijk_|nvjet|mat(?:rix)?_?mul|\bbmm_|epilogue::impl|wgmma"),
    ("copy", r"transpose|nchwtonhwc|nhwctonchw|catarray|copy|permute|scatter|gather|index_elementwise|memcpy|withcast"),
    # These two are called after the loss's reduction mode and write one gradient per element.
    ("elementwise", r"nll_loss_backward|updategradinput"),
    # Pooling reduces over a window; a scan is a reduction that keeps its steps.
    (
        "reduction",
        r"updateoutput|pool|scan|reduce|reduction|nvfuser_\w*persistent|\bdot_kernel|argmax|argmin|_dot\b|sum_\w*rows",
    ),
    ("elementwise", r"elementwise|pointwise|dropout|distribution_|upsample|subtensor"),
    (
        "elementwise",
        r"act_and_mul|silu|gelu|relu|swiglu|quant|fp8|scale|scal_kernel|axpy|vec(?:tor)?_?(?:add|mul)|clamp_",
    ),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in RULES)


def family(full_name: str) -> str:
    """Return the kind of work a kernel does, one of FAMILIES.

    A communication kernel has ``nccl`` or ``rccl`` in its function name, or is a known custom
    collective. Layout changes, concatenations and indexed moves are ``copy``; pooling and scans are
    ``reduction``; filling and random numbers are ``elementwise``.

    Parameters
    ----------
    full_name
        Demangled kernel name; any text.

    Returns
    -------
    str
        ``other`` when the name does not say.

    Examples
    --------
    >>> family("ampere_sgemm_32x32_sliced1x4_tn"), family("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    ('gemm', 'communication')
    """
    if _NCCL.search(base(full_name)):
        return "communication"
    name = "::".join(part.name for part in qualified(full_name))[:_REACH]
    text = f"{name} {functor(full_name)[:_REACH]}".rstrip()
    return next((kind for kind, pattern in _COMPILED if pattern.search(text)), "other")
