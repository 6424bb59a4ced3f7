"""Where the lines of a roofline picture run: slopes, heights, ridges and the ends of each line.

Conventions
-----------
A roof has either a slope, bytes/s, or a height, FLOP/s; the other is NaN. Intensities are FLOP/byte.

Functions
---------
roofs      the distinct roofs to draw, with their labels
ridges     where slopes meet heights
frame      the corners of the picture
lines      the ends of each roof inside the frame
precision  a precision as people write it
rate       a rate in the unit people would use
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit.format import Unit, number, unit

FLOPS = tuple(Unit(f"{prefix}FLOP/s", 1000.0**power) for power, prefix in enumerate(("", "k", "M", "G", "T", "P")))
BYTES = tuple(Unit(f"{prefix}B/s", 1000.0**power) for power, prefix in enumerate(("", "k", "M", "G", "T")))
LEVELS = {"dram": "DRAM", "l2": "L2", "l1": "L1"}

_WORDS = {"acc16": "(FP16 accumulation)", "sparse": "(sparse)"}


class Frame(NamedTuple):
    """The corners of the picture: intensities and performances."""

    left: float
    right: float
    bottom: float
    top: float


def precision(name: str) -> str:
    """Return the name of a precision as people write it.

    Examples
    --------
    >>> precision("fp32"), precision("bf16_tensor"), precision("fp16_tensor_acc16")
    ('FP32', 'BF16 tensor', 'FP16 tensor (FP16 accumulation)')
    """
    kind, *more = name.split("_")
    return " ".join([kind if kind == "tensor" else kind.upper(), *(_WORDS.get(word, word) for word in more)])


def rate(value: float, ladder: tuple[Unit, ...]) -> str:
    """Return a rate in the largest unit it fills.

    Examples
    --------
    >>> rate(19.5e12, FLOPS), rate(1.935e12, BYTES)
    ('19.5 TFLOP/s', '1.94 TB/s')
    """
    chosen = unit(value, ladder)
    return f"{number(value / chosen.size)} {chosen.symbol}"


def roofs(ceilings: pd.DataFrame, used: set[str], level: str) -> pd.DataFrame:
    """Return slope, height, label and source of each distinct roof; precisions of one height share it."""
    slopes = ceilings[ceilings["roof"] == level].drop_duplicates("bytes_per_s")
    wanted = used | {name.removesuffix("_acc16") for name in used}
    rows = [
        (float(speed), np.nan, f"{LEVELS[level]} {rate(float(speed), BYTES)}", source)
        for speed, source in zip(slopes["bytes_per_s"], slopes["source"], strict=True)
    ]
    for height, same in ceilings[ceilings["roof"].isin(wanted)].groupby("flops_per_s"):
        who = ", ".join(dict.fromkeys(precision(str(name)) for name in same["roof"]))
        rows.append((np.nan, float(str(height)), f"{who} {rate(float(str(height)), FLOPS)}", same["source"].iloc[0]))
    return pd.DataFrame(rows, columns=["slope", "height", "label", "source"]).astype({"slope": float, "height": float})


def ridges(roofs: pd.DataFrame) -> pd.DataFrame:
    """Return intensity, performance and label of each point where a slope meets a height."""
    slopes, heights = roofs.loc[roofs["slope"].notna(), ["slope"]], roofs.loc[roofs["height"].notna(), ["height"]]
    met = slopes.merge(heights, how="cross")
    met = met.assign(intensity=met["height"] / met["slope"], performance=met["height"])
    return met.assign(label=[f"ridge {number(at)} FLOP/byte" for at in met["intensity"]]).drop(
        columns=["slope", "height"]
    )


def frame(drawn: pd.DataFrame, roofs: pd.DataFrame, ridges: pd.DataFrame) -> Frame:
    """Return corners that hold all points and ridges, with room on the right for labels."""
    x = pd.concat([drawn["intensity"], ridges["intensity"]])
    y = pd.concat([drawn["performance"], roofs["height"].dropna()])
    return Frame(x.min() / 6, x.max() * 30, y.min() / 3, y.max() * 3)


def lines(roofs: pd.DataFrame, frame: Frame) -> pd.DataFrame:
    """Return the ends of each roof, and, with `label`, the place of its text."""
    rows = [
        (n, *end, roof["source"])
        for n, roof in enumerate(roofs.to_dict("records"))
        for end in _ends(roof, roofs, frame)
    ]
    return pd.DataFrame(rows, columns=["line", "intensity", "performance", "roof", "label", "source"])


def _ends(roof: dict[Any, Any], roofs: pd.DataFrame, frame: Frame) -> Iterator[tuple[float, float, str, str]]:
    """Return intensity, performance, name and, at one of the ends, label of a roof."""
    if pd.isna(roof["height"]):
        highest = min(frame.top, roofs["height"].max()) if roofs["height"].notna().any() else frame.top
        first = max(frame.left, frame.bottom / roof["slope"])
        last = max(first, min(frame.right, highest / roof["slope"]))
        middle = first * (last / first) ** 0.2
        for at, text in ((first, ""), (middle, roof["label"]), (last, "")):
            yield at, roof["slope"] * at, roof["label"], text
        return
    steepest = roofs["slope"].max()
    first = frame.left if pd.isna(steepest) else max(frame.left, roof["height"] / steepest)
    for at, text in ((first, ""), (frame.right, roof["label"])):
        yield at, roof["height"], roof["label"], text
