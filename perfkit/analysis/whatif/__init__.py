"""How long would a run take if something in it were changed?

`replay` answers with the span of the run under changes, as a range, or refuses; `prepared` and `changed` are its two
parts, for several answers about one run. `stretch` chooses the steps that stand for a run too long to be replayed
whole, `around` the rows that a replay of a window looks at. Tables may be empty; one that is not what its name says
raises SchemaError.
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
