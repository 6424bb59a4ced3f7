"""How long would a run take if something in it were changed?

Functions
---------
replay     the span of a run under changes, as a range; or a refusal
prepared, changed    its two parts, for several answers about one run
stretch    the steps that stand for a run too long to be replayed whole; or a refusal
around     the rows of the tables that a replay of a window looks at

Data
----
Prepared, Replay, Stretch                                                    what they return
Kernels, Copies, Launches, Host, Synchronisations, Communication             the changes
"""

from perfkit.analysis.whatif.changes import Change, Communication, Copies, Host, Kernels, Launches, Synchronisations
from perfkit.analysis.whatif.repeated_steps import Stretch, around, stretch
from perfkit.analysis.whatif.schedule import LIMIT_FRAC, Prepared, Replay, changed, prepared, replay

__all__ = [
    "LIMIT_FRAC",
    "Change",
    "Communication",
    "Copies",
    "Host",
    "Kernels",
    "Launches",
    "Prepared",
    "Replay",
    "Stretch",
    "Synchronisations",
    "around",
    "changed",
    "prepared",
    "replay",
    "stretch",
]
