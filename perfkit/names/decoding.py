"""What does a kernel's name say, all in one?

Functions
---------
decode   every property of a name, and a sentence
table    short name and family of many names
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import pandas as pd

from perfkit.names import arithmetic, traits
from perfkit.names.families import family
from perfkit.names.libraries import library_of
from perfkit.names.sentences import sentence
from perfkit.names.shortening import short
from perfkit.names.traits import Decoded


@lru_cache(maxsize=4096)
def decode(full_name: str) -> Decoded:
    """Return everything a kernel's name says: library, precision, tile, split, and a plain sentence.

    The name is a hint, written by the kernel's author; counters decide what a kernel really did.

    Parameters
    ----------
    full_name
        Demangled kernel name; any text.

    Returns
    -------
    Decoded
        Its fields are empty (``tensor_cores`` None) where the name does not say.

    Examples
    --------
    >>> said = decode("ampere_sgemm_32x32_sliced1x4_tn")
    >>> said.library, said.precision, said.tensor_cores, said.tile, said.layout, said.split
    ('cuBLAS', 'fp32', False, '32x32', 'tn', 'slice-K 4 within the block')
    """
    kind = family(full_name)
    precision = arithmetic.precision(full_name)
    said = Decoded(
        name=short(full_name),
        family=kind,
        library=library_of(full_name),
        architecture=traits.architecture(full_name),
        precision=precision,
        tensor_cores=arithmetic.tensor_cores(full_name, kind, precision),
        tile=traits.tile(full_name, kind),
        layout=traits.layout(full_name, kind),
        split=traits.split(full_name),
        operation=traits.operation(full_name),
    )
    return replace(said, sentence=sentence(full_name, said))


def table(full_names: Iterable[str]) -> pd.DataFrame:
    """Return short name and family of each distinct kernel name.

    Every name is read once, however often it occurs: give it the categories of a column.

    Parameters
    ----------
    full_names
        Demangled kernel names, in any order; may repeat and be empty.

    Returns
    -------
    pandas.DataFrame
        One row per distinct name, in order of first occurrence; columns full_name, name and family
        (string, never missing).

    Examples
    --------
    >>> table(["volta_sgemm_64x64_nn", "volta_sgemm_64x64_nn"]).to_dict("records")
    [{'full_name': 'volta_sgemm_64x64_nn', 'name': 'volta_sgemm_64x64_nn', 'family': 'gemm'}]
    """
    distinct = list(dict.fromkeys(full_names))
    columns = {"full_name": distinct, "name": map(short, distinct), "family": map(family, distinct)}
    return pd.DataFrame({name: pd.array(list(values), dtype="string") for name, values in columns.items()})
