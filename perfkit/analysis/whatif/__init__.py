"""How long would a run take if something in it were changed?

Functions
---------
replay    the span of a run under changes, as a range; or a refusal

Data
----
Replay                                                                       what it returns
Kernels, Copies, Launches, Host, Synchronisations, Communication             the changes
"""

from perfkit.analysis.whatif.changes import (
    Change,
    Communication,
    Copies,
    Host,
    Kernels,
    Launches,
    Synchronisations,
)
from perfkit.analysis.whatif.replay import LIMIT_FRAC, Replay, replay

__all__ = [
    "LIMIT_FRAC",
    "Change",
    "Communication",
    "Copies",
    "Host",
    "Kernels",
    "Launches",
    "Replay",
    "Synchronisations",
    "replay",
]
