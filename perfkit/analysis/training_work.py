"""How much work does a training do per token and per second, and which shares of the peak can be believed?

A number that is not above 0 raises ValueError.
"""

from __future__ import annotations

import math

from perfkit.errors import PerfkitError

SUSPICIOUS_ABOVE = 0.7
# Published dense training of language models in BF16 on A100 and H100: Llama 3 405B 38-43 %, Megatron-LM 41-48 %,
# PaLM 46 %, the sequence-parallel Megatron-LM 56 %.
LADDER = {"poor": 0.0, "low": 0.2, "typical": 0.35, "good": 0.45, "excellent": 0.55}
VERDICTS = (*LADDER, "suspicious")
_CAUSES = (
    "Check that work, time and GPUs are all global or all those of one GPU, that the peak is that of this GPU and of "
    "the precision that ran, and that no work is counted that is not done, such as inactive parameters and look-ups."
)


def credible(share: float, *, what: str, gpus: int = 1) -> str:
    """Return a note if a share of the dense peak of all GPUs is suspiciously high, else the empty string.

    `what` names the quantity in the message. PerfkitError if the share is above 1, with how many GPUs it would take and
    the usual causes.

    Examples
    --------
    >>> credible(0.46, what="mfu"), credible(0.82, what="mfu")[:22]
    ('', 'above 70 % of the peak')
    """
    if share > 1:
        least = math.ceil(share * gpus)
        raise PerfkitError(
            f"{what}: {share:.4g} of the peak is impossible, that takes at least {least} such GPUs and {gpus} are "
            f"counted. {_CAUSES}"
        )
    if share > SUSPICIOUS_ABOVE:
        return f"above 70 % of the peak, which no published training of a dense model reaches. {_CAUSES}"
    return ""


def verdict(share: float) -> str:
    """Return the rung of the ladder of training utilisation: dense language models, BF16, A100 or H100.

    Examples
    --------
    >>> [verdict(share) for share in (0.1, 0.35, 0.462, 0.563, 0.819)]
    ['poor', 'typical', 'good', 'excellent', 'suspicious']
    """
    if share > SUSPICIOUS_ABOVE:
        return "suspicious"
    return [name for name, least in LADDER.items() if share >= least][-1]


def positive(**arguments: float) -> None:
    """Raise ValueError for the first argument that is not a number above 0."""
    for name, value in arguments.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}: {value} is not a number above 0")


def active_parameters(*, parameters: float, in_experts: float, experts: int, experts_per_token: int) -> float:
    """Return the parameters that a token passes through: parameters - in_experts x (1 - experts_per_token / experts).

    Parameters
    ----------
    parameters, in_experts
        All parameters of the model, and those of them in experts, of all layers and experts together.
    experts, experts_per_token
        Experts per layer, and how many of them a token is sent to.

    Raises
    ------
    ValueError
        If there are more parameters in the experts than there are, or a token has more experts than there are.

    Examples
    --------
    Mixtral 8x7B: 46.7e9 parameters, 8 experts of 3 x 4096 x 14336 in each of 32 layers, 2 of them per token.

    >>> experts = 32 * 8 * 3 * 4096 * 14336
    >>> active = active_parameters(parameters=46.7e9, in_experts=experts, experts=8, experts_per_token=2)
    >>> round(active / 1e9, 1)
    12.9
    """
    positive(parameters=parameters, experts=experts, experts_per_token=experts_per_token)
    if not 0 <= in_experts <= parameters:
        raise ValueError(f"in_experts: {in_experts} is not within 0 and the parameters, {parameters}")
    if experts_per_token > experts:
        raise ValueError(f"experts_per_token: {experts_per_token} is more than the experts, {experts}")
    return parameters - in_experts * (1 - experts_per_token / experts)


def flops_per_token(
    *, parameters: float, layers: int = 0, heads: int = 0, head_size: int = 0, sequence: int = 0
) -> float:
    """Return the FLOP that training on one token takes: 6 N + 12 L H Q T.

    2 per parameter forward and 4 backward, and the attention over the whole sequence, without the half that a causal
    mask leaves out. Nothing that is computed a second time is in it.

    Parameters
    ----------
    parameters
        N, parameters that a token passes through: without embeddings that are only looked up; of a mixture-of-experts
        model the active ones (`active_parameters`).
    layers, heads, head_size, sequence
        L, H, Q (size of a head) and T (tokens of a sequence) of the attention. Without them the attention is left out:
        8 % of the operations of a model of 70e9 parameters at 4096 tokens, 16 % of one of 7e9.

    Raises
    ------
    ValueError
        If there are no parameters, or only some of the four figures of the attention are given.

    References
    ----------
    Chowdhery et al.: PaLM, arXiv 2204.02311, appendix B.

    Examples
    --------
    >>> flops_per_token(parameters=70e9) / 1e9
    420.0
    >>> flops_per_token(parameters=70e9, layers=80, heads=64, head_size=128, sequence=4096) / 1e9
    452.21225472
    """
    positive(parameters=parameters)
    attention = {"layers": layers, "heads": heads, "head_size": head_size, "sequence": sequence}
    if any(attention.values()):
        positive(**attention)
    return 6 * parameters + 12 * layers * heads * head_size * sequence


def samples_per_s(*, global_batch: float, step_ns: float) -> float:
    """Return the samples of all GPUs that are trained per second: global batch / step time.

    The global batch are the samples of a step on all GPUs together, accumulated micro-batches included; a step lasts
    from one optimizer step to the next, ns.

    Examples
    --------
    >>> samples_per_s(global_batch=256, step_ns=2.5e9)
    102.4
    """
    positive(global_batch=global_batch, step_ns=step_ns)
    return global_batch / (step_ns / 1e9)


def tokens_per_s(*, global_batch: float, sequence: float, step_ns: float) -> float:
    """Return the tokens of all GPUs that are trained per second: global batch x tokens of a sample / step time.

    The global batch is the batch of a replica times the replicas; the GPUs that share a replica (tensor and pipeline
    parallelism) train on the same tokens and count once.

    Examples
    --------
    64 replicas with a batch of 4 each:

    >>> tokens_per_s(global_batch=4 * 64, sequence=4096, step_ns=2.5e9)
    419430.4
    """
    positive(sequence=sequence)
    return samples_per_s(global_batch=global_batch, step_ns=step_ns) * sequence
