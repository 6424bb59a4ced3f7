"""An earlier run as one side of a comparison: a recording, or a report that was made of one.

A report keeps every table of its run as Parquet, and in `summary.json` which reader each table is from. That is all a
comparison needs, so nobody has to keep the recording. Times and ranks of the tables are those of the run.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from perfkit.cache import DAMAGED, from_parquet
from perfkit.errors import PerfkitError, ReadError
from perfkit.job import known
from perfkit.profile import Missing, Profile
from perfkit.readers import every_name, ordered
from perfkit.readers.text import capture_table
from perfkit.report.links import FOLDER
from perfkit.run import Run, load
from perfkit.selection import Selection, select
from perfkit.tables import TABLES

SUMMARY = "summary.json"
CHOICE = ("ranks", "gpus", "window", "kernels", "families")
AGAIN = "Make the report again with `perfkit report`, or give the recording."


def readers(run: Run) -> list[dict[str, Any]]:
    """Return a dictionary for each reader of a run: what `given` must know besides the tables themselves."""
    names = ordered(profile.reader for profile in run.profiles)
    return [_described(run, name) for name in names]


def _described(run: Run, name: str) -> dict[str, Any]:
    profiles = [profile for profile in run.profiles if profile.reader == name]
    capture = profiles[0].capture.iloc[0]
    tables = [table for table in TABLES if table != "CAPTURE" and _owner(run, table) == name]
    return {
        "reader": name,
        "tool": str(capture["tool"]),
        "tool_version": str(capture["tool_version"]),
        "platform": str(capture["platform"]),
        "dur_ns": max(int(profile.capture["dur_ns"].iloc[0]) for profile in profiles),
        "tables": [table.lower() for table in tables],
        "left_out": sum(len(run.left_out(table)) for table in tables),
        "missing": [asdict(missing) for profile in profiles for missing in profile.missing],
    }


def _owner(run: Run, table: str) -> str:
    """Return the reader from which a run takes a table that has rows; empty if there is none."""
    holders = ordered(profile.reader for profile in run.profiles if table in profile.loaders)
    return holders[0] if holders and len(run.table(table)) else ""


def given(path: Path) -> Run | Selection:
    """Return a run of a comparison: the part that a report looked at, or all of a recording.

    ReadError if the report lacks what a comparison needs.
    """
    return of_report(path) if (path / SUMMARY).is_file() else load(path)


def of_report(folder: Path) -> Selection:
    """Return the part of a run that a report looked at, from the tables of the report."""
    inputs = _inputs(folder)
    profiles = [_profile(folder, one) for one in inputs["readers"]]
    run = Run(profiles, job=known({}, folder))
    choice = {name: inputs["parameters"][name] for name in CHOICE}
    return select(run, **choice)


def _inputs(folder: Path) -> dict[str, Any]:
    """Return what the summary of a report says of its recording, checked."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        inputs: dict[str, Any] = summary["inputs"]
        parameters = inputs["parameters"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as e:
        raise ReadError(f"{folder / SUMMARY}: not the summary of a report. {AGAIN}") from e
    if not isinstance(inputs.get("readers"), list) or not set(CHOICE) <= set(parameters):
        raise ReadError(
            f"{folder / SUMMARY}: an earlier perfkit made it and did not say what each table is from. {AGAIN}"
        )
    return inputs


def _profile(folder: Path, stored: Mapping[str, Any]) -> Profile:
    """Return the tables of one reader as a profile, none of them read."""
    try:
        name = stored["reader"]
        tables = [table.upper() for table in stored["tables"]]
        capture = capture_table(
            folder / name,
            stored["tool"],
            stored["tool_version"],
            dur_ns=stored["dur_ns"],
            platform=stored["platform"],
        )
        missing = tuple(Missing(**one) for one in stored["missing"])
        left_out = int(stored["left_out"])
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise ReadError(f"{folder / SUMMARY}: damaged. {AGAIN}") from e
    if name not in every_name() or not set(tables) <= set(TABLES):
        raise ReadError(
            f"{folder / SUMMARY}: its reader or a table is unknown to this perfkit. {AGAIN}"
        )
    if left_out:
        raise PerfkitError(
            f"{folder}: {left_out:,} rows of the recording had times that cannot be, and a report does not keep them: "
            "perfkit cannot tell what they would change. Give the recording."
        )
    loaders = {table: partial(_table, folder, table) for table in tables}
    return Profile(name, folder / name, capture, loaders, missing)


def _table(folder: Path, name: str) -> pd.DataFrame:
    """Return a table of a report; ReadError if it is gone or damaged."""
    file = folder / FOLDER / f"{name.lower()}.parquet"
    try:
        frame, _ = from_parquet(file.read_bytes(), name)
    except FileNotFoundError as e:
        raise ReadError(f"{file}: the report lacks this table, which is compared. {AGAIN}") from e
    except (OSError, *DAMAGED) as e:
        first = str(e).partition("\n")[0]
        raise ReadError(f"{file}: damaged ({first}). {AGAIN}") from e
    return frame
