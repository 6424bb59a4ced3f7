"""How every page calls the parts of the time, so that verdict, tile, picture and list name one thing alike."""

import tomllib
from pathlib import Path

import pandas as pd

with Path(__file__).with_suffix(".toml").open("rb") as _file:
    _NAMES: dict[str, dict[str, str]] = tomllib.load(_file)

TIME: dict[str, str] = _NAMES["time"]
IDLE_PREFIX = "idle: "
IDLE = {
    key: name.removeprefix(IDLE_PREFIX)
    for key, name in TIME.items()
    if name.startswith(IDLE_PREFIX)
}  # the causes of idle time, for where a title says that the GPU is idle
# Of idle time, with the one that stands for all causes on the CPU.
CAUSE = {"host_wait": "idle: waiting for the CPU", **TIME}
LIMIT: dict[str, str] = _NAMES["limit"]
STALLS: dict[str, str] = _NAMES["stalls"]
# By the kind of a line of a ledger; a line of idle time is called by its cause.
KEY_OF = {
    "computation": "computation_ns",
    "collective": "exposed_communication_ns",
    "other_kernels": "other_kernels_ns",
    "copy": "exposed_copy_ns",
    "collector": "collector",
    "unknown": "unknown",
}
NOTABLE = 0.1  # of the time of all devices: shares then say that they are of the rest (convention)
SMALL = 0.01  # of the time of all devices; smaller parts are one (convention)
UNTOLD = ("collector", "unknown")  # kinds of time that tell nothing of the program
WORK = ("computation_ns", "other_kernels_ns")  # of a GPU; the other parts are losses


def keys(ledger: pd.DataFrame) -> pd.Series:
    """Return the key in TIME of each line of a ledger: by cause where the GPU is idle, else by kind."""
    by_kind = ledger["kind"].astype(object).map(KEY_OF)
    cause = ledger["cause"].astype(object)
    key = cause.where(ledger["kind"] == "idle", by_kind)
    return key.where(key.isin(list(TIME)), "idle_ns")


def told(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of a ledger that tell of the program: without unknown time and the profiler's own."""
    return ledger[~ledger["kind"].isin(UNTOLD)]


def known(ledger: pd.DataFrame) -> str:
    """Return "known " where a tenth of a ledger's time or more is not: shares are then those of the known time."""
    whole = ledger["ns"].sum()
    return "known " if whole - told(ledger)["ns"].sum() >= NOTABLE * whole > 0 else ""


def shares(ledger: pd.DataFrame) -> pd.Series:
    """Return the share of the known time of all GPUs (0..1) that each part has, by key, in the order of TIME."""
    lines = told(ledger)
    of_part = lines["ns"].groupby(keys(lines)).sum() / lines["ns"].sum()
    return of_part.reindex([key for key in TIME if key in of_part.index])


def stall(reason: str) -> str:
    """Return a stall reason for people, with its own name.

    >>> stall("gmem"), stall("long_scoreboard")
    ('global memory (gmem)', 'long scoreboard')
    """
    return f"{STALLS[reason]} ({reason})" if reason in STALLS else reason.replace("_", " ")
