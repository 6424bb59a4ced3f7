"""NCCL: the tables of nccl-tests and rccl-tests, their reports (``-J``), and the log of NCCL_DEBUG=INFO.

Run ``all_reduce_perf -b 8 -e 8G -f 2 -g 8 > all_reduce.txt``, or ``-J all_reduce.json`` with it,
and a program with ``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING``. One file can hold
several tables, and both. Tried with tables of 2.10 to 2.19, launchers' prefixes, and logs of 2.18
to 2.31.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.logs.nccl import benchmark, log
from perfkit.logs.nccl.log import Call, Edge, Facts, operation
from perfkit.logs.text import samples_table
from perfkit.profile import Missing, Profile, node_of
from perfkit.readers.text import capture_table, content, head

VERSION = 10
KIND = "network"
LARGEST = 4 * 10**9
READS = "the output of nccl-tests (or what `-J` wrote), a log with NCCL_DEBUG=INFO"
SHARES = True
RANKED = ("COLLECTIVES",)  # the table in which the ranks of one log are told apart
LOOKED_AT = 200_000  # bytes; before the table a log holds what the launcher and the program print
_LOG = re.compile(r":\d+:\d+ \[\d+\] (?:\S+ ){0,3}NCCL (?:INFO|WARN) ")

REMEDIES = {
    "COLLECTIVES": (
        "Which collectives ran, and how fast?",
        "all_reduce_perf -b 8 -e 8G -f 2 of nccl-tests, or a program with NCCL_DEBUG=INFO "
        "NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING",
    ),
    "LINKS": (
        "Which rings, trees and transports did NCCL use?",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,SHM,NET",
    ),
}

_FAILURE = re.compile(
    r"Test (?:NCCL|CUDA) failure .*|Test failure .*|Watchdog caught collective operation timeout.*"
    r"|died from signal .*"
    r"|launch failed .*|ncclUnhandledCudaError.*|ncclSystemError.*|ncclRemoteError.*"
)
_HINTS = ("fail", "timeout", "died", "nccl")  # words of these, found faster
SHOWN = 3  # warnings that are quoted
LENGTH = 200  # characters of a line that are quoted


def sniff(path: Path) -> bool:
    """Say whether `path` is output of nccl-tests or holds lines of NCCL, by a table's header and NCCL's own prefix."""
    start = log.decode(head(path, LOOKED_AT))
    if benchmark.is_report(start) or benchmark.BANNER.search(start) or _LOG.search(start):
        return True
    return any(benchmark.layout(line) for line in start.splitlines() if "algbw" in line)


def read(path: Path) -> Profile:
    """Open a log or a report; a run that failed has notes and no table.

    COLLECTIVES: per size of a table a row out of place and one in place (source "benchmark",
    duration exact as printed, ns), and per call and rank one without a duration (source "log"):
    times that NCCL estimates are none.
    """
    text = log.decode(content(path))
    return _report(text, path) if benchmark.is_report(text[:LOOKED_AT]) else _log(text, path)


def _report(text: str, path: Path) -> Profile:
    report = benchmark.read_report(text, path)
    table = report.table
    if not table.rows and not report.error:
        raise ReadError(f"{path}: the report of nccl-tests holds no results. Run the test again.")
    frames = {
        "COLLECTIVES": _collectives_table([table], [], path),
        "DEVICES": _devices_table([table]),
    }
    notes = [
        *_setup_note([table], Facts()),
        *_failed_note(report.error),
        *_benchmark_notes([table], path),
        *([] if report.whole else ["the file ends in the middle of a result, which is left out"]),
    ]
    if report.repeated:
        where = f"{len(report.repeated)}, such as {_quoted(report.repeated[0])}"
        notes.append(
            f"keys are there twice in one object, the last value of each is read ({where})"
        )
    if report.t0_unix_ns is not None:
        notes.append("its start is local time without a zone, taken as UTC")
    capture = capture_table(path, "nccl-tests", "", report.t0_unix_ns)
    made = _profile(path, frames, notes, capture, {device.host for device in table.devices})
    return replace(made, failure=_quoted(report.error))


def _log(text: str, path: Path) -> Profile:
    written = log.read_log(text, path)
    benchmarks = benchmark.read_tables(written.lines)
    binary = next((table.binary for table in benchmarks if table.binary is not None), None)
    if binary is not None:
        raise ReadError(
            f"{path}: binary data among the rows of a table, in line {binary}. Copy the log again."
        )
    facts = log.facts_of(written.said, (line.text for line in written.lines))
    called, network = log.calls(written.said, facts), log.links(written.said)
    hinted = (line.text for line in written.lines if any(hint in line.text for hint in _HINTS))
    failure = next((_quoted(match[0]) for text in hinted if (match := _FAILURE.search(text))), "")
    frames = {
        "COLLECTIVES": _collectives_table(benchmarks, called.calls, path),
        "LINKS": _links_table(network.edges, facts),
        "DEVICES": _devices_table(benchmarks),
        "SAMPLES": _cards_table(facts),
    }
    if not (len(frames["COLLECTIVES"]) or network.edges or failure or facts.warnings):
        raise ReadError(_nothing(path, benchmarks))
    damaged = written.interleaved + network.damaged + called.damaged
    notes = [
        *_setup_note(benchmarks, facts),
        *_failed_note(failure),
        *_benchmark_notes(benchmarks, path),
        *[f"{called.unsized} calls or choices of unknown message size are left out"]
        * bool(called.unsized),
        *[f"{damaged} lines of NCCL that are not whole are left out"] * bool(damaged),
        *written.notes,
        *(f"NCCL warned: {_quoted(text)}" for text in list(facts.warnings)[:SHOWN]),
    ]
    more = len(facts.warnings) - SHOWN
    notes += [f"and {more} more warnings of NCCL"] if more > 0 else []
    version = next((table.version for table in benchmarks), "") or next(iter(facts.versions), "")
    capture = capture_table(path, "nccl-tests" if benchmarks else "NCCL", version)
    hosts = {entry.host for entry in written.said} | {
        device.host for table in benchmarks for device in table.devices
    }
    return replace(_profile(path, frames, notes, capture, hosts), failure=failure)


def _profile(
    path: Path,
    frames: dict[str, pd.DataFrame],
    notes: list[str],
    capture: pd.DataFrame,
    hosts: set[str],
) -> Profile:
    """Return a profile of the tables with rows; the rank is that of the log if it is of one rank only."""
    kept = {name: frame for name, frame in frames.items() if len(frame)}
    ranks = frames["COLLECTIVES"]["rank"].unique()
    own = (
        int(ranks[0])
        if len(ranks) == 1 and (frames["COLLECTIVES"]["source"] == "log").any()
        else None
    )
    if own:
        kept["COLLECTIVES"] = kept["COLLECTIVES"].assign(
            rank=pd.Series(0, kept["COLLECTIVES"].index, dtype="int32")
        )
    loaders = {name: partial(kept.__getitem__, name) for name in kept}
    node = node_of(next(iter(hosts))) if len(hosts) == 1 else ""
    missing = tuple(
        Missing(table, *remedy) for table, remedy in REMEDIES.items() if table not in kept
    )
    return Profile("nccl", path, capture, loaders, missing, tuple(notes), own, node)


def _nothing(path: Path, benchmarks: Sequence[benchmark.Table]) -> str:
    """Return why a log without links and calls has nothing to load; rows that are not whole are no early end."""
    damaged = [number for table in benchmarks for number in table.damaged]
    if damaged:
        return (
            f"{path}: {len(damaged)} rows of nccl-tests and none that is whole (line {damaged[0]} "
            "first). Write the log again, without the lines of other programs in it."
        )
    if benchmarks:
        return (
            f"{path}: a header of nccl-tests and no rows: the run ended before its first result. "
            "Run it again."
        )
    return (
        f"{path}: neither results of nccl-tests nor rings, connections or calls of NCCL. Run "
        "nccl-tests to its end, or record with NCCL_DEBUG=INFO "
        "NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING."
    )


def _collective(table: benchmark.Table, path: Path) -> str | None:
    """Return the collective of a table: what it says, else what its rows tell, with a command's or the file's name."""
    if table.program or not table.rows:
        return operation(table.program)
    options = log.candidates(table.rows, table.ranks)
    hints = [name for name in (operation(table.named), operation(path.name)) if name in options]
    return options[0] if len(options) == 1 else next(iter(hints), None)


def _ranks(table: benchmark.Table, collective: str | None) -> int | None:
    """Return the number of ranks of a table: of its list of devices, or what its bandwidths tell if that is more.

    Lines of the list can be lost, none is there too often.
    """
    return max(table.ranks or 0, benchmark.implied_ranks(table.rows, collective) or 0) or None


def _collectives_table(
    benchmarks: Sequence[benchmark.Table], calls: Sequence[Call], path: Path
) -> pd.DataFrame:
    """Return COLLECTIVES: both halves of each row of the tables, then the calls."""
    columns = [
        "rank",
        "operation",
        "bytes",
        "dtype",
        "ranks",
        "dur_ns",
        "algorithm",
        "protocol",
        "placement",
        "source",
    ]
    rows: list[tuple[object, ...]] = []
    for table in benchmarks:
        name = _collective(table, path)
        for row in table.rows:
            place = (0, name, row.bytes, row.dtype, _ranks(table, name))
            chosen = (row.algorithm, row.protocol)
            rows += [
                (*place, timing.dur_ns, *chosen, timing.placement, "benchmark")
                for timing in row.timings
            ]
    for call in calls:
        message = (call.rank, call.operation, call.bytes, call.dtype, call.ranks)
        rows.append((*message, float("nan"), call.algorithm, call.protocol, None, "log"))
    frame = pd.DataFrame(rows, columns=columns).astype({"ranks": "Int64"})
    return tables.COLLECTIVES.make(frame.assign(gpu=-1))


def _links_table(edges: dict[Edge, str | None], facts: Facts) -> pd.DataFrame:
    """Return LINKS; paths are those of the first pattern that NCCL printed, inside a node and to the network."""
    inside, outside = next(iter(facts.paths), (None, None))
    rows: list[tuple[object, ...]] = []
    for edge, via in edges.items():
        path = None
        if via is not None:
            path = outside if via.startswith("NET/") else inside
        rows.append((0, *edge, via, path))
    columns = ["rank", "kind", "channel", "from_rank", "to_rank", "transport", "path"]
    frame = pd.DataFrame(rows, columns=columns)
    if facts.node_count:
        frame["nodes"] = facts.node_count
    return tables.LINKS.make(frame)


def _devices_table(benchmarks: Sequence[benchmark.Table]) -> pd.DataFrame:
    """Return DEVICES: the GPUs of rank 0's node, as the first table lists them."""
    listed = next((table.devices for table in benchmarks if table.devices), [])
    names = {
        device.gpu: device.name for device in reversed(listed) if device.host == listed[0].host
    }
    columns = {"rank": 0, "gpu": list(names), "name": list(names.values())}
    return tables.DEVICES.make(pd.DataFrame(columns))


def _cards_table(facts: Facts) -> pd.DataFrame:
    """Return SAMPLES: how many network cards NCCL uses on a node, of several nodes the fewest."""
    counts = [count for count in facts.cards if count > 0]
    if not counts:
        return samples_table({})
    value = np.array([float(min(counts))])
    return samples_table({(0, -1, "network_card_count"): (np.zeros(1, np.int64), value)})


def _failed_note(error: str) -> list[str]:
    """Return the remark that the run failed, if something said so."""
    return [f"the run failed: {_quoted(error)}"] if error else []


def _quoted(text: str) -> str:
    """Return a text from outside as it can stand in a note: printable, not too long."""
    clean = "".join(c if c.isprintable() else "?" for c in text.strip())
    return clean if len(clean) <= LENGTH else f"{clean[: LENGTH - 3]}..."


def _benchmark_notes(benchmarks: Sequence[benchmark.Table], path: Path) -> list[str]:
    """Return remarks on tables, each once with the tables it is about."""
    about: dict[str, dict[str, None]] = {}
    for table in benchmarks:
        collective = _collective(table, path)
        title = table.program or collective or "a table of an unknown collective"
        for note in _table_notes(table, collective):
            about.setdefault(note, {})[_quoted(title)] = None
    return [f"{', '.join(titles)}: {note}" for note, titles in about.items()]


def _table_notes(table: benchmark.Table, collective: str | None) -> list[str]:
    timings = [timing for row in table.rows for timing in row.timings]
    wrong = sum(any(timing.wrong for timing in row.timings) for row in table.rows)
    notes = []
    if not table.rows and not table.damaged:
        notes.append("no rows: the run ended before its first result")
    elif table.rows and not table.ended:
        notes.append(
            f"ends after {len(table.rows)} rows without a summary: the run or the log was cut off"
        )
    if table.rows and collective is None and not table.program:
        notes.append(
            "the log does not say which collective it is; run a later nccl-tests, or name the file "
            "after it"
        )
    ranks = _ranks(table, collective)
    if table.rows and table.ranks and ranks != table.ranks:
        notes.append(
            f"its list of devices has {table.ranks} ranks, its bandwidths are those of {ranks}, "
            "which count"
        )
    if table.rows and ranks is None:
        notes.append(
            "without its list of devices the number of ranks is unknown, and so is the bus "
            "bandwidth"
        )
    if wrong or table.out_of_bounds:
        notes.append(
            f"data corrupt in {wrong} rows ({table.out_of_bounds} values out of bounds): its times "
            "say nothing"
        )
    if timings and all(timing.wrong is None for timing in timings):
        notes.append("the results were not checked (validation off)")
    if table.cpu_time:
        notes.append("times of the CPU (-C 1) are no durations: left out")
    if table.reduced_to is not None:
        notes.append(f"sizes end below {table.reduced_to} bytes, for lack of memory")
    if table.damaged:
        what = "that are not whole" if table.headed else "without a header"
        notes.append(
            f"{len(table.damaged)} rows {what} are left out (line {table.damaged[0]} first)"
        )
    return notes


def _setup_note(benchmarks: Sequence[benchmark.Table], facts: Facts) -> list[str]:
    """Return what ran: versions, ranks, nodes, network."""
    parts = []
    libraries = {_library(table.library): None for table in benchmarks if table.library}
    versions = list(dict.fromkeys([*facts.versions, *libraries]))
    if versions:
        parts.append(f"NCCL {', '.join(versions[:SHOWN])}")
    listed = next((table for table in benchmarks if table.devices), benchmark.Table())
    if listed.devices:
        gpus = max(len(listed.devices), listed.ranks or 0)  # a report lists one GPU per process
        parts.append(
            f"{_counted(gpus, 'GPU')} on {_counted(len({d.host for d in listed.devices}), 'node')}"
        )
    if facts.sizes:
        nodes = f" on {_counted(max(facts.nodes), 'node')}" if facts.nodes else ""
        local = f" ({max(facts.local_ranks)} per node)" if facts.local_ranks else ""
        parts.append(f"{_counted(facts.sizes[0], 'rank')}{nodes}{local}")
    if facts.networks:
        parts.append(f"network {_quoted(', '.join(facts.networks))}")
    if facts.paths:
        inside, outside = next(iter(facts.paths))
        parts.append(f"paths {inside} between GPUs and {outside} to the network")
    return ["; ".join(parts)] if parts else []


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _library(code: int) -> str:
    """Return the version that NCCL_VERSION_CODE stands for (nccl.h: X * 10000 + Y * 100 + Z, until 2.8 X * 1000)."""
    major, rest = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
