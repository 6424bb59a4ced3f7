"""How much does each further GPU bring, and what explains what is lost?

Functions
---------
scaling        efficiency of each run against the smallest one
scaling_fit    the serial share and the communication share that explain the runs best
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.errors import PerfkitError
from perfkit.schema import Column, Table

RUNS = Table(
    "RUNS",
    "a run of a training on a number of GPUs",
    (
        Column("gpus", "int64", "GPUs of the run"),
        Column("throughput_per_s", "float64", "tokens, samples or steps of all GPUs per second"),
    ),
    ("gpus",),
)
FEWEST = 3
_MODELS = {"serial": ("serial",), "communication": ("communication",), "both": ("serial", "communication")}


def scaling(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the scaling efficiency of each run: T(N) / (N / n x T(n)), n being the GPUs of the smallest run.

    With the batch of a GPU held constant that is weak scaling, with the global batch held constant strong scaling.

    Parameters
    ----------
    runs
        RUNS, in any order; may be empty. Several runs on the smallest number of GPUs are averaged for the baseline.

    Returns
    -------
    pandas.DataFrame
        The rows of `runs` by `gpus`: `gpus` int64; `throughput_per_s`, float64; `baseline_gpus` int64;
        `speedup`, over the baseline, and `efficiency_frac`, float64, above 0; `note` string, what to check where the
        efficiency is above 1, else empty: it can be, where a smaller share of the data fits a cache.

    Raises
    ------
    SchemaError
        If `runs` is not a RUNS table.
    ValueError
        If a number of GPUs or a throughput is not above 0.

    References
    ----------
    Amdahl: Validity of the single processor approach to achieving large scale computing capabilities, 1967.

    Examples
    --------
    >>> runs = pd.DataFrame({"gpus": [1, 8, 64, 512], "throughput_per_s": [1000.0, 7200.0, 48000.0, 320000.0]})
    >>> scaling(runs)["efficiency_frac"].tolist()
    [1.0, 0.9, 0.75, 0.625]
    """
    runs = _checked(runs)
    gpus, throughput = runs["gpus"], runs["throughput_per_s"]
    fewest = gpus.min()
    speedup = throughput / throughput[gpus == fewest].mean()
    efficiency = speedup / (gpus / fewest)
    above = "above 1: check that all runs do the same work per step, and that nothing slowed the smallest one"
    notes = pd.Series("", runs.index, dtype="string").mask(efficiency > 1, above)
    columns = {"baseline_gpus": fewest, "speedup": speedup, "efficiency_frac": efficiency, "note": notes}
    return runs.assign(**columns).astype({"baseline_gpus": "int64"})


def _checked(runs: pd.DataFrame) -> pd.DataFrame:
    runs = RUNS.make(RUNS.check(runs)[RUNS.column_names])
    wrong = runs[(runs["gpus"] < 1) | ~runs["throughput_per_s"].between(0, np.inf, inclusive="neither")]
    if len(wrong):
        row = wrong.iloc[0]
        raise ValueError(f"runs: {row['throughput_per_s']} per second on {row['gpus']:.0f} GPUs are not both above 0")
    return runs


def scaling_fit(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the shares that explain the throughputs best, of three models, each with its residual.

    The time N / T(N) that a GPU spends per unit of work is taken for
    a (1 + s (N - 1)) with the serial share s of Amdahl's law,
    a (1 + c (N - 1) / N) with a ring all-reduce that takes c times the computation on many GPUs, or
    the sum of both, which needs one run more. The coefficients are those of least squares of the relative
    error, none of them below 0. A model that would need a serial share above 1 is left out.

    A fit describes the runs it was made from. A residual as large as the efficiency that is lost says that the model
    does not explain it: topology that changes from one number of GPUs to the next, for example, is in none of them.

    Parameters
    ----------
    runs
        RUNS, in any order, on at least three different numbers of GPUs.

    Returns
    -------
    pandas.DataFrame
        A row per model, the smallest residual first: `model` category, serial, communication or both;
        `gpu_throughput_per_s` float64, 1 / a, what one GPU would do alone; `serial_frac` float64, 0..1, the share s of
        one GPU's work that all of them wait for, 0 where the model has none; `communication_frac` float64, 0..1, the
        share of the time on the largest number of GPUs in which they communicate and do not compute, 0 where the
        model has none; `residual_frac` float64, root mean square of (fitted - measured) / measured throughput;
        `runs_count` int64.

    Raises
    ------
    PerfkitError
        If there are fewer than three different numbers of GPUs: two runs fit any of the models.
    SchemaError
        If `runs` is not a RUNS table.
    ValueError
        If a number of GPUs or a throughput is not above 0.

    References
    ----------
    Amdahl, 1967; ring all-reduce: NVIDIA/nccl-tests, doc/PERFORMANCE.md.

    Examples
    --------
    >>> gpus = np.array([1, 2, 4, 8])
    >>> amdahl = pd.DataFrame({"gpus": gpus, "throughput_per_s": 100 / (0.1 + 0.9 / gpus)})
    >>> scaling_fit(amdahl)[["model", "serial_frac"]].round(9).to_numpy().tolist()[0]
    ['serial', 0.1]
    """
    runs = _checked(runs)
    distinct = runs["gpus"].nunique()
    if distinct < FEWEST:
        raise PerfkitError(
            f"scaling_fit: runs on {distinct} different numbers of GPUs explain nothing, any model fits them. Measure "
            f"at least {FEWEST}."
        )
    models = [name for name, terms in _MODELS.items() if distinct > len(terms) + 1]
    table = pd.DataFrame([_fit(runs, name) for name in models])
    table["model"] = pd.Categorical(table["model"], list(_MODELS))
    table = table[table["serial_frac"] <= 1]
    # Residuals that differ by rounding alone are equal; the simpler model comes first then.
    return table.sort_values("residual_frac", key=lambda r: r.round(9), kind="stable").reset_index(drop=True)


def _fit(runs: pd.DataFrame, model: str) -> dict[str, object]:
    gpus, throughput = (runs[name].to_numpy("float64") for name in RUNS.column_names)
    time = gpus / throughput
    curves = {"one": np.ones(len(gpus)), "serial": gpus - 1, "communication": (gpus - 1) / gpus}
    terms = ("one", *_MODELS[model])
    found = dict(zip(terms, _least_squares(np.stack([curves[term] / time for term in terms], axis=1)), strict=True))
    fitted = gpus / sum(found[term] * curves[term] for term in terms)
    alone, serial, ring = found["one"], found.get("serial", 0.0), found.get("communication", 0.0)
    exchange, most = ring * curves["communication"].max(), gpus.max() - 1
    return {
        "model": model,
        "gpu_throughput_per_s": 1 / alone,
        "serial_frac": serial / alone,
        "communication_frac": exchange / (alone + serial * most + exchange),
        "residual_frac": float(np.sqrt(np.mean((fitted / throughput - 1) ** 2))),
        "runs_count": len(runs),
    }


def _least_squares(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients, none below 0 and the first always there, whose sum of columns is nearest to 1."""
    target = np.ones(len(columns))
    rest = range(1, columns.shape[1])
    best, least = np.zeros(columns.shape[1]), np.inf
    for used in (chosen for number in range(len(rest) + 1) for chosen in combinations(rest, number)):
        kept = [0, *used]
        scale = columns[:, kept].max(axis=0)
        found = np.linalg.lstsq(columns[:, kept] / scale, target, rcond=None)[0] / scale
        error = float(np.sum((columns[:, kept] @ found - target) ** 2))
        if (found >= 0).all() and error < least:
            best, least = np.zeros(columns.shape[1]), error
            best[kept] = found
    return best
