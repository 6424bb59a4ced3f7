"""How well does the training use the GPUs: which share of their peak does it reach?

Rates are of all GPUs together, never of one. Operations are what the model needs (model FLOP), peaks the dense
ones of the precision that ran; there is no default for either. Communication is not FLOP: it lowers a share of the
peak, and is never counted into one. A share above 1 is refused, one above 0.7 is flagged. The share of the peak of a
traced run, from the shapes of its operators, is `perfkit.analysis.flops.mfu`.

Arguments of the functions
    flops_per_token  FLOP, as `flops_per_token` returns it
    gpus             all GPUs of the run, whatever the parallelism
    peaks            dense peaks of one GPU, such as ``hardware.peaks(name)``, or measured ones; None is refused
    precision        the one in which most of the arithmetic runs, such as "bf16_tensor": a key of
                     ``hardware.PRECISIONS``
PerfkitError says that the peak is not known or the result is above 1, ValueError that a number is not above 0 or the
precision is none.

Source: Chowdhery et al.: PaLM, arXiv 2204.02311, appendix B. DeepSpeed, Flops Profiler.
"""

import math

import pandas as pd

from perfkit.analysis.causes import where
from perfkit.analysis.grouping import ranked
from perfkit.errors import PerfkitError
from perfkit.hardware import Peaks
from perfkit.tables import MODULES, SAMPLES

SUSPICIOUS_ABOVE = 0.7
# Published dense training of language models in BF16 on A100 and H100: Llama 3 405B 38-43 %, Megatron-LM 41-48 %,
# PaLM 46 %, the sequence-parallel Megatron-LM 56 %.
LADDER = {"poor": 0.0, "low": 0.2, "typical": 0.35, "good": 0.45, "excellent": 0.55}
VERDICTS = (*LADDER, "suspicious")
_CAUSES = (
    "Check that work, time and GPUs are all global or all those of one GPU, that the peak is that of this GPU and of "
    "the precision that ran, and that no work is counted that is not done, such as inactive parameters and look-ups."
)
_RATES = ["forward_flops_per_s", "training_flops_per_s"]
_TIMES = ["forward_ns", "backward_ns", "iteration_ns"]


def mfu(
    *, tokens_per_s: float, flops_per_token: float, gpus: int, peaks: Peaks | None, precision: str
) -> pd.DataFrame:
    """Return the model FLOP utilisation: tokens per second x FLOP per token / (GPUs x dense peak).

    Of a model without tokens give samples or images per second, and the FLOP of one of these. One row: `tokens_per_s`,
    `flops_per_token` float64; `gpus` int64; `precision` string; `peak_flops_per_s` float64, of one GPU; `mfu_frac`
    float64, above 0, at most 1; `verdict` category: poor (below 0.2), low (0.35), typical (0.45), good (0.55),
    excellent (0.7), suspicious, which holds for dense language models in BF16 on A100 and H100; `note` string, what to
    check where it is suspicious, else empty.

    A model of 70e9 parameters, 16384 tokens and one H100 in 8.5 s; in 2.5 s it would be more than there is. That
    arithmetic counts the tokens of a replica, which takes many GPUs (16 bytes per parameter are 1.12 TB), for one GPU.

    >>> h100 = Peaks("H100", {"bf16_tensor": 989e12})
    >>> run = {"flops_per_token": 6 * 70e9, "gpus": 1, "peaks": h100, "precision": "bf16_tensor"}
    >>> mfu(tokens_per_s=16384 / 8.5, **run)[["mfu_frac", "verdict"]].round(4).to_numpy().tolist()
    [[0.8186, 'suspicious']]
    >>> mfu(tokens_per_s=16384 / 2.5, **run)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    perfkit.errors.PerfkitError: mfu: 2.783 of the peak is impossible, that takes at least 3 such GPUs and 1 are ...
    """
    positive(tokens_per_s=tokens_per_s, flops_per_token=flops_per_token, gpus=gpus)
    peak = peak_flops(peaks, precision, what="mfu")
    share = tokens_per_s * flops_per_token / (gpus * peak)
    note = credible(share, what="mfu", gpus=gpus)
    columns = {
        "tokens_per_s": [float(tokens_per_s)],
        "flops_per_token": [float(flops_per_token)],
        "gpus": [int(gpus)],
        "precision": pd.array([precision], "string"),
        "peak_flops_per_s": [peak],
        "mfu_frac": [share],
        "verdict": pd.Categorical([verdict(share)], VERDICTS),
        "note": pd.array([note], "string"),
    }
    return pd.DataFrame(columns)


def hfu(
    *,
    tokens_per_s: float,
    flops_per_token: float,
    gpus: int,
    peaks: Peaks | None,
    precision: str,
    recomputed_frac: float,
) -> pd.DataFrame:
    """Return the hardware FLOP utilisation beside the model's: hfu = mfu x (1 + recomputed_frac / 3).

    A third of the operations of training are forward; activation checkpointing computes `recomputed_frac` (0..1, else
    ValueError) of that third a second time, so that hfu / mfu is 8 N / 6 N = 4/3 where all of it is. The row of `mfu`,
    with `recomputed_frac` and `hfu_frac`, float64, above 0, at most 1, before `verdict`, which remains that of
    `mfu_frac`; `note` is about `hfu_frac`.

    >>> a100 = Peaks("A100", {"bf16_tensor": 312e12})
    >>> run = {"tokens_per_s": 380.0, "flops_per_token": 6 * 65.2e9, "gpus": 1, "peaks": a100}
    >>> found = hfu(**run, precision="bf16_tensor", recomputed_frac=1)
    >>> found[["mfu_frac", "hfu_frac"]].round(4).to_numpy().tolist()
    [[0.4765, 0.6353]]
    """
    if not 0 <= recomputed_frac <= 1:
        raise ValueError(f"recomputed_frac: {recomputed_frac} is not within 0 and 1")
    model = mfu(
        tokens_per_s=tokens_per_s,
        flops_per_token=flops_per_token,
        gpus=gpus,
        peaks=peaks,
        precision=precision,
    )
    share = float(model["mfu_frac"].iloc[0]) * (1 + recomputed_frac / 3)
    note = pd.array([credible(share, what="hfu", gpus=gpus)], "string")
    both = model.drop(columns=["verdict", "note"]).assign(
        recomputed_frac=float(recomputed_frac), hfu_frac=share
    )
    return both.assign(verdict=model["verdict"], note=note)


def peak_flops(peaks: Peaks | None, precision: str, *, what: str) -> float:
    """Return the dense peak of `precision`, FLOP/s, or raise PerfkitError if there is none."""
    if peaks is None:
        raise PerfkitError(
            f"{what}: no peak is known. Pass peaks=hardware.peaks(name of the GPU), or your own with hardware.Peaks."
        )
    return peaks.flops(precision)


def implied_peak_ratio(*, speedup: float, before_frac: float, after_frac: float) -> float:
    """Return by how much peak over FLOP per token must have grown for two shares of the peak to fit a speed-up.

    With the same model on the same GPUs in the same precision the share of the peak grows as the throughput does, and
    the ratio speedup / (after_frac / before_frac) is 1; `speedup` is throughput after over throughput before. Any other
    value says that the two shares have another peak or model and are not comparable, or that a figure is wrong.

    From 22 % to 58 % with 3.75 times the throughput: the peak cannot have been the same one.

    >>> round(implied_peak_ratio(speedup=3.75, before_frac=0.22, after_frac=0.58), 2)
    1.42
    """
    positive(speedup=speedup, before_frac=before_frac, after_frac=after_frac)
    return speedup / (after_frac / before_frac)


def reported_mfu(samples: pd.DataFrame, *, peaks: Peaks | None, precision: str) -> pd.DataFrame:
    """Return the share of the peak that DeepSpeed or Megatron report: printed FLOP/s of one GPU / its dense peak.

    Neither prints a utilisation of its own. DeepSpeed counts the operations of the forward pass and takes twice as
    many for the backward pass; Megatron prints the rate of the iteration, in which older versions count recomputed
    activations. Several reports of a rank (profiled steps, iterations) are averaged; metrics of SAMPLES other than
    `forward_flops_per_s`, `training_flops_per_s` and the times of the passes are passed over.

    One row per rank and gpu with such a report, ascending: `peak_flops_per_s` float64, of one GPU; `forward_frac`,
    `mfu_frac`, `iteration_mfu_frac`: of the forward pass, of what the report calls training (forward and backward
    pass in DeepSpeed's), and of the iteration, which ends after the optimizer's step; NaN where the report lacks
    the lines for it; `note` string, what to check where one of them is suspicious, else empty.
    """
    peak = peak_flops(peaks, precision, what="reported_mfu")
    wanted = SAMPLES.check(samples)[where(samples["metric"], {*_RATES, *_TIMES}.__contains__)]
    named = wanted.astype({"metric": "string"})
    printed = named.pivot_table(
        index=["rank", "gpu"], columns="metric", values="value", aggfunc="mean"
    )
    printed = printed.reindex(columns=[*_RATES, *_TIMES]).dropna(subset=_RATES, how="all")
    passes = printed["forward_ns"] + printed["backward_ns"]
    shares = {
        "forward_frac": printed["forward_flops_per_s"] / peak,
        "mfu_frac": printed["training_flops_per_s"] / peak,
        "iteration_mfu_frac": printed["training_flops_per_s"]
        / peak
        * passes
        / printed["iteration_ns"],
    }
    table = pd.DataFrame({"peak_flops_per_s": peak, **shares}, index=printed.index)
    highest = table[list(shares)].max(axis=1)
    table["note"] = pd.array([credible(share, what="reported_mfu") for share in highest], "string")
    return table.reset_index().astype(
        {"rank": "int32", "gpu": "int32", **dict.fromkeys(shares, "float64")}
    )


def modules(listed: pd.DataFrame) -> pd.DataFrame:
    """Return the time of the forward pass by class of module, of MODULES: which layers of the model take it.

    Own time is that of a module without the modules in it that the report lists; the classes' own times add up to the
    forward pass. By falling `self_ns`: `rank`; `kind`; `count`; `parameters_count`, `forward_flops` float64 and
    `forward_ns` int64, sums with what the modules hold, so that a class inside of itself counts twice; `self_ns` int64,
    at least 0 (the report rounds to three digits); `share_frac` of the rank's forward pass, NaN where that is 0.
    """
    frame = MODULES.check(listed)
    inner = frame.groupby(["rank", "parent"])["forward_ns"].sum().rename("inner_ns")
    own = frame.join(inner, on=["rank", "module"])
    own["self_ns"] = (own["forward_ns"] - own.pop("inner_ns").fillna(0).astype("int64")).clip(
        lower=0
    )
    whole = frame[frame["parent"] < 0].groupby("rank")["forward_ns"].sum().astype("float64")
    amounts = ["parameters_count", "forward_flops", "forward_ns", "self_ns"]
    kinds = own.groupby(["rank", "kind"], observed=True)
    table = kinds[amounts].sum().assign(count=kinds.size()).reset_index()
    table["share_frac"] = table["self_ns"] / table["rank"].map(whole.where(whole > 0))
    return ranked(
        table[["rank", "kind", "count", *amounts, "share_frac"]], "self_ns", ["rank", "kind"]
    )


def credible(share: float, *, what: str, gpus: int = 1) -> str:
    """Return a note if a share of all GPUs' dense peak, named `what`, is suspiciously high, else the empty string.

    PerfkitError if the share is above 1, with how many GPUs it would take and the usual causes.
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
    """Return the rung of the ladder of training utilisation: dense language models, BF16, A100 or H100."""
    if share > SUSPICIOUS_ABOVE:
        return "suspicious"
    return [name for name, least in LADDER.items() if share >= least][-1]


def positive(**arguments: float) -> None:
    """Raise ValueError for the first argument that is not a number above 0."""
    for name, value in arguments.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}: {value} is not a number above 0")


def flops_per_token(
    *, parameters: float, layers: int = 0, heads: int = 0, head_size: int = 0, sequence: int = 0
) -> float:
    """Return the FLOP that training on one token takes: 6 N + 12 L H Q T.

    2 per parameter forward and 4 backward, and the attention over the whole sequence, without the half that a causal
    mask leaves out. Nothing that is computed a second time is in it.

    `parameters`: N, parameters that a token passes through: without embeddings that are only looked up; of a
    mixture-of-experts model the active ones.
    `layers`, `heads`, `head_size`, `sequence`: L, H, Q (size of a head) and T (tokens of a sequence) of the attention.
    Without them the attention is left out: 8 % of the operations of a model of 70e9 parameters at 4096 tokens, 16 % of
    one of 7e9.

    ValueError if there are no parameters, or only some of the four figures of the attention are given.

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

    >>> samples_per_s(global_batch=256, step_ns=2.5e9)
    102.4
    """
    positive(global_batch=global_batch, step_ns=step_ns)
    return global_batch / (step_ns / 1e9)


def tokens_per_s(*, global_batch: float, sequence: float, step_ns: float) -> float:
    """Return the tokens of all GPUs that are trained per second: global batch x tokens of a sample / step time.

    The global batch is the batch of a replica times the replicas; the GPUs that share a replica (tensor and pipeline
    parallelism) train on the same tokens and count once.

    64 replicas with a batch of 4 each:

    >>> tokens_per_s(global_batch=4 * 64, sequence=4096, step_ns=2.5e9)
    419430.4
    """
    positive(sequence=sequence)
    return samples_per_s(global_batch=global_batch, step_ns=step_ns) * sequence
