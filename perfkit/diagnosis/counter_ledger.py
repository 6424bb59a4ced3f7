"""Where did the time of the measured launches go? The third question of a diagnosis, for counters (Nsight Compute).

Each launch is one line: its time, by what limits it, in the order of the hardware (`analysis.limiters`). "Memory" alone
limits nothing: a level is named, or said to be unknown. The columns are those of the ledger of a timeline.
"""

import pandas as pd

from perfkit.analysis.ledger import LEDGER
from perfkit.diagnosis.kernels import limited
from perfkit.diagnosis.stored import kept
from perfkit.selection import Selection

LAUNCH = "launch"  # the kind of every line


@kept
def ledger(view: Selection, *, peaks: str = "") -> pd.DataFrame:
    """Return `analysis.ledger.LEDGER` of the measured launches: cause is the limit, owner the kernel.

    The lines of a GPU add up to the time of its launches. A launch without a time is in no line.
    """
    found = limited(view, peaks=peaks)
    launches = pd.DataFrame(
        {
            "rank": found["rank"].to_numpy(),
            "gpu": view.launches["gpu"].to_numpy(),
            "cause": found["limit"].astype(object).to_numpy(),
            "owner": found["name"].astype(object).to_numpy(),
            "ns": found["dur_ns"].to_numpy(),
        }
    ).dropna(subset="ns")
    by_line = launches.groupby(["rank", "gpu", "cause", "owner"], as_index=False)["ns"].sum()
    by_line["ns"] = by_line["ns"].round().astype("int64")
    return LEDGER.make(by_line.assign(phase="whole", kind=LAUNCH))
