"""A rule about servers: the GPU is idle because no request came, which no faster program changes.

A thread that launches work and waits in epoll_wait or accept has nothing to do until somebody asks
for something. Of poll and select that is not known: workers that load data are waited for in the
same calls.
"""

import re
from collections.abc import Iterator, Mapping

import pandas as pd

from perfkit.analysis.causes import where
from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.program import goes_backward
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.longest_moments import longest_gap
from perfkit.diagnosis.rules.rule import Known, Rule, now, soon, tell
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import idle_gaps, is_judged, owned, span_ns
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

NOTABLE = 0.1
FOR_REQUESTS = re.compile(r"(?:epoll_p?wait2?|accept4?)$")


@kept
def waits(view: Selection) -> pd.DataFrame:
    """Return the stretches of OWNED in which the launching thread waits for a request.

    None of a training.
    """
    if idle_gaps(view) is None or not is_judged(view) or view.os_calls.empty or goes_backward(view):
        return pd.DataFrame(columns=["dur_ns", "owner"])
    rows = owned(view)
    is_call = rows["owner_kind"].eq("os_call") & rows["detail"].eq("system")
    calls = rows[is_call.to_numpy()]
    return calls[where(calls["owner"], FOR_REQUESTS.match)]


def _claims(view: Selection) -> Mapping[str, float]:
    share = _share(view)
    return {"system": share} if share >= NOTABLE else {}


def _share(view: Selection) -> float:
    rows = waits(view)
    return float(rows["dur_ns"].sum() / span_ns(view)) if len(rows) else 0.0


def _no_request(view: Selection, _: Known) -> Iterator[Finding]:
    share = _share(view)
    if share < NOTABLE:
        return
    rows = waits(view)
    figure = Figure(
        "no_request_frac",
        "Without a request",
        share,
        "1",
        (
            "share of the span: the GPU is idle, and the thread that launches work waits for a request"
        ),
        "owners.owned",
    )
    call = printable(str(rows.groupby("owner", observed=True)["dur_ns"].sum().idxmax()), 80)
    text = (
        f"The thread that launches work waits in `{call}` for {duration(int(rows['dur_ns'].sum()))} "
        "in all. It has "
    )
    text += "nothing to do until a request comes: the load sets the pace, not the program."
    gain = Gain(1.0, 1.0, "a faster program is not asked more often", share)
    title = f"The server has no request {percent(share)} {of_the_time(view)}, and the GPU is idle"
    yield tell(NO_REQUEST, title, text, (figure,), gain, level="low")


NO_REQUEST = Rule(
    name="no_request",
    question="Is the GPU idle because the server has no request?",
    needs=("KERNELS", "API_CALLS", "OS_CALLS"),
    evidence=("no_request_frac",),
    target="set by the load",
    threshold=(
        "The thread that launches work waits in epoll_wait or accept for 10 % of the time "
        "(convention)"
    ),
    advice=(
        now(
            "Judge the server by the time of a request and by its throughput under full load "
            "(such as vllm bench serve --request-rate=inf for vLLM), not by the idle time"
        ),
        soon("Share the GPU with another service, or use fewer GPUs, if the load stays this low"),
    ),
    next=(
        "Record the server under the load that you care about, and compare the time of one request"
    ),
    moment=longest_gap(),
    reason="the server had no request",
    find=_no_request,
    claims=_claims,
)
