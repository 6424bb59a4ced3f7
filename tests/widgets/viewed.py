"""What tests look for in a view: its charts, the rows of its tables, its sentences."""

import io
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pandas as pd
import traitlets
from frames import kernels, lasting
from trained import run as recorded

import perfkit
from perfkit.charts.tables import Searchable
from perfkit.run import Run
from perfkit.widgets.live import Shown


def chosen(run: Run, **choice: Any) -> perfkit.Selection:
    return perfkit.select(run, **choice)


def small(length: int = 10) -> Run:
    """Two kernels, 100 ns from start to start."""
    return recorded(kernels=kernels(lasting(0, length), lasting(100, length)))


def still(view: object) -> Shown:
    assert isinstance(view, Shown)
    return view


def seen(view: Callable[[perfkit.Selection], object], run: Run, **choice: Any) -> Shown:
    """What a view shows of a choice of a run."""
    return still(view(chosen(run, **choice)))


def specs(view: Shown) -> list[dict[str, Any]]:
    return [
        part.to_dict()
        for part in view.parts
        if not isinstance(part, str) and hasattr(part, "to_dict")
    ]


def values(spec: Any, column: str) -> pd.DataFrame:
    if isinstance(spec, list | tuple) and spec and isinstance(spec[0], dict) and column in spec[0]:
        return pd.DataFrame(spec)
    inner = (
        spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list | tuple) else []
    )
    return next((rows for part in inner if len(rows := values(part, column))), pd.DataFrame())


def title(spec: dict[str, Any]) -> str:
    return str(spec["title"]["text"] if isinstance(spec["title"], dict) else spec["title"])


def csv(view: Shown, number: int = 0) -> pd.DataFrame:
    tables = [part for part in view.parts if isinstance(part, Searchable)]
    packed = re.findall(r"base64,([^\"]+)", tables[number].html)
    return pd.read_csv(io.BytesIO(b64decode(packed[0])), float_precision="round_trip")


def sentences(view: Shown) -> list[str]:
    return [part for part in view.parts if isinstance(part, str)]


class Chooser(traitlets.HasTraits):
    selection = traitlets.Any()
    problem = traitlets.Unicode()
