"""Events that a trace writes as a begin and an end (phases B and E of the Chrome trace format), made complete ones."""

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

from perfkit.readers.torch_trace.events import ABSENT, Half, event_of, nanoseconds


class Pairs:
    """The begins of each thread that are still open; `lost` counts ends without a begin of their name.

    An end belongs to the innermost open begin of its process and thread. It may lack the name.
    """

    def __init__(self) -> None:
        self._open: defaultdict[tuple[bytes, bytes], list[Half]] = defaultdict(list)
        self._unmatched = 0

    @property
    def lost(self) -> int:
        """How many begins have no end so far, and how many ends had no begin."""
        return self._unmatched + sum(map(len, self._open.values()))

    def complete(self, halves: Iterable[Half]) -> list[Any]:
        """Return the events that these halves complete, each in the form of its category."""
        events = []
        for half in halves:
            thread = self._open[half.text("pid"), half.text("tid")]
            if half.ph == "B":
                thread.append(half)
            elif thread and half.text("name") in (b"", thread[-1].text("name")):
                events.append(_joined(thread.pop(), half))
            else:
                self._unmatched += 1
        return events


def _joined(begin: Half, end: Half) -> Any:
    start_ns, end_ns = nanoseconds([begin.fields.get("ts", ABSENT), end.fields.get("ts", ABSENT)])
    dur = Decimal(int(end_ns - start_ns)).scaleb(-3)  # ns as the us of the trace
    whole = {**end.fields, **begin.fields, "ph": msgspec.Raw(b'"X"')}
    whole["dur"] = msgspec.Raw(f"{dur:f}".encode())
    return event_of(msgspec.Raw(msgspec.json.encode(whole)))
