"""NCCL: the tables of nccl-tests and rccl-tests, their reports (``-J``), and the log of NCCL_DEBUG=INFO.

Run ``all_reduce_perf -b 8 -e 8G -f 2 -g 8 > all_reduce.txt``, or ``-J all_reduce.json`` with it, and a program with
``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING``. One file can hold several tables, and both. Tried with
tables of 2.10 to 2.19, launchers' prefixes, and logs of 2.18 to 2.30.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pandas as pd

from perfkit.errors import ReadError
from perfkit.profile import Profile, node_of
from perfkit.readers.nccl import benchmark, calls, fill, lines, links, log, remarks, report
from perfkit.readers.nccl.layout import layout
from perfkit.readers.text import content, head

__all__ = ["VERSION", "read", "sniff"]

VERSION = 3
LARGEST = 4 * 10**9
RANKED = ("COLLECTIVES",)  # the table in which the ranks of one log are told apart
LOOKED_AT = 200_000  # bytes; before the table a log holds what the launcher and the program print
_LOG = re.compile(r":\d+:\d+ \[\d+\] (?:\S+ ){0,3}NCCL (?:INFO|WARN) ")


def sniff(path: Path) -> bool:
    """Say whether `path` is output of nccl-tests or holds lines of NCCL, by a table's header and NCCL's own prefix."""
    start = lines.decode(head(path, LOOKED_AT))
    if report.is_report(start) or benchmark.BANNER.search(start) or _LOG.search(start):
        return True
    return any(layout(line) for line in start.splitlines() if "algbw" in line)


def read(path: Path) -> Profile:
    """Open a log or a report.

    Returns
    -------
    Profile
        COLLECTIVES: per size of a table a row out of place and one in place (source "benchmark", duration exact as
        printed, ns), and per call and rank one without a duration (source "log"): times that NCCL estimates are none.
        LINKS of the rings, trees and connections; DEVICES of the first node. What went wrong, what is unusual and
        which transports are slow is in ``notes``; a run that failed has them and no table.

    Raises
    ------
    ReadError
        If there is nothing in it but headers, or binary data among its rows.
    """
    text = lines.decode(content(path))
    return _report(text, path) if report.is_report(text[:LOOKED_AT]) else _log(text, path)


def _report(text: str, path: Path) -> Profile:
    found = report.read(text, path)
    table = found.table
    if not table.rows and not found.error:
        raise ReadError(f"{path}: the report of nccl-tests holds no results. Run the test again.")
    frames = {"COLLECTIVES": fill.collectives([table], [], path), "DEVICES": fill.devices([table])}
    notes = [
        *remarks.setup([table], log.Facts()),
        *remarks.failed(found.error),
        *remarks.benchmarks([table], path),
        *remarks.report(found),
    ]
    capture = fill.capture(path, "nccl-tests", "", found.t0_unix_ns)
    return _profile(path, frames, notes, capture, {device.host for device in table.devices})


def _log(text: str, path: Path) -> Profile:
    found = lines.read(text, path)
    tables = benchmark.tables(found.lines)
    _check_text(tables, path)
    facts = log.facts(found.said, (line.text for line in found.lines))
    made, edges, failure = calls.calls(found.said, facts), links.links(found.said), remarks.failure(found.lines)
    frames = {
        "COLLECTIVES": fill.collectives(tables, made.calls, path),
        "LINKS": fill.links(edges.edges),
        "DEVICES": fill.devices(tables),
    }
    if not (len(frames["COLLECTIVES"]) or edges.edges or failure or facts.warnings):
        raise ReadError(_nothing(path, bool(tables)))
    notes = [
        *remarks.setup(tables, facts),
        *remarks.failed(failure),
        *remarks.benchmarks(tables, path),
        *links.remarks(edges),
        *remarks.left_out(made.unsized, found.interleaved + edges.damaged + made.damaged, found),
        *remarks.warnings(facts),
    ]
    version = next((table.version for table in tables), "") or next(iter(facts.versions), "")
    capture = fill.capture(path, "nccl-tests" if tables else "NCCL", version, None)
    hosts = {said.host for said in found.said} | {device.host for table in tables for device in table.devices}
    return _profile(path, frames, notes, capture, hosts)


def _profile(
    path: Path, frames: dict[str, pd.DataFrame], notes: list[str], capture: pd.DataFrame, hosts: set[str]
) -> Profile:
    """Return a profile of the tables with rows; the rank is that of the log if it is of one rank only."""
    kept = {name: frame for name, frame in frames.items() if len(frame)}
    ranks = frames["COLLECTIVES"]["rank"].unique()
    own = int(ranks[0]) if len(ranks) == 1 and (frames["COLLECTIVES"]["source"] == "log").any() else None
    if own:
        kept["COLLECTIVES"] = kept["COLLECTIVES"].assign(rank=pd.Series(0, kept["COLLECTIVES"].index, dtype="int32"))
    loaders = {name: partial(kept.__getitem__, name) for name in kept}
    node = node_of(next(iter(hosts))) if len(hosts) == 1 else ""
    return Profile("nccl", path, capture, loaders, fill.missing(set(kept)), tuple(notes), own, node)


def _check_text(tables: list[benchmark.Table], path: Path) -> None:
    line = next((table.binary for table in tables if table.binary is not None), None)
    if line is not None:
        raise ReadError(f"{path}: binary data among the rows of a table, in line {line}. Copy the log again.")


def _nothing(path: Path, has_table: bool) -> str:
    if has_table:
        return f"{path}: a header of nccl-tests and no rows: the run ended before its first result. Run it again."
    return (
        f"{path}: neither results of nccl-tests nor rings, connections or calls of NCCL. Run nccl-tests to its end, "
        "or record with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING."
    )
