"""Which shares of the peak can be believed?

Functions
---------
credible    refuse what is impossible, flag what is suspicious
verdict     the ladder of training utilisation
positive    refuse arguments that are no number above 0
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
    """Return a note if a share of the peak is suspiciously high, the empty string if it can be believed.

    Parameters
    ----------
    share
        Operations per second over the dense peak of all GPUs.
    what
        Name of the quantity, for the message.
    gpus
        GPUs whose peak was counted.

    Raises
    ------
    PerfkitError
        If the share is above 1, with how many GPUs it would take and the usual causes.

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
