"""The operators of a run with the kernels they launched, joined once, so that any part of it is summed up soon."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.nesting import launching, parents
from perfkit.analysis.operators.totals import checked, summed
from perfkit.analysis.window import Window
from perfkit.tables import API_CALLS, KERNELS, OPS


class Operators:
    """What `perfkit.analysis.operators.summary` says of any window and choice of kernels, without joining them again.

    Parameters
    ----------
    ops, kernels, api_calls
        OPS, KERNELS and API_CALLS of one execution; may be empty. They are kept, with 8 bytes per operator and kernel.

    Raises
    ------
    SchemaError
        If a table does not match its schema.

    Examples
    --------
    >>> Operators(OPS.empty(), KERNELS.empty(), API_CALLS.empty()).summary().empty
    True
    """

    def __init__(self, ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame) -> None:
        self._ops, self._kernels = OPS.check(ops), KERNELS.check(kernels)
        self._parent = parents(ops)
        _, self._row = launching(ops, self._parent, kernels, API_CALLS.check(api_calls))

    def summary(
        self,
        *,
        by: str | Sequence[str] = "name",
        window: Window | None = None,
        ops: Int | None = None,
        kernels: Int | None = None,
    ) -> pd.DataFrame:
        """Return count, CPU time and GPU time of the operators, grouped.

        Parameters
        ----------
        by, window
            As in `perfkit.analysis.operators.summary`.
        ops, kernels
            Positions in OPS and KERNELS, ascending, of those to look at: operators of whole ranks with any of their
            kernels; all when omitted.

        Returns
        -------
        pandas.DataFrame
            As `perfkit.analysis.operators.summary` of these operators and kernels, and the calls of these ranks.

        Raises
        ------
        ValueError
            If `by` is empty or names another column, or the window does not end after it starts.
        """
        of_ops, parent, of_kernels, row = self._ops, self._parent, self._kernels, self._row
        if kernels is not None:
            of_kernels, row = of_kernels.take(kernels), row[kernels]
        if ops is not None:
            number = np.full(len(of_ops) + 1, -1, np.int64)  # the last one answers for no operator
            number[ops] = np.arange(len(ops))
            of_ops, parent, row = of_ops.take(ops), number[parent[ops]], number[row]
        kept = of_ops.reset_index(drop=True), of_kernels.reset_index(drop=True)
        return summed(kept[0], parent, kept[1], row, keys=checked(by), window=window)
