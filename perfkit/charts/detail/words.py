"""Kinds of bars on the timeline: their colours and their names for people."""

from __future__ import annotations

from perfkit.charts.theme import DETAIL_COLOURS, FAMILY_COLOURS, KIND_COLOURS, KIND_NAMES

GREY = "#6B757E"  # white words on it have a contrast of 4.8
BESIDE_COLOURS: dict[str, str] = {
    "copied": KIND_COLOURS["copy"],
    "launch": DETAIL_COLOURS["launch"],
    "sync": DETAIL_COLOURS["sync"],
    "memory": DETAIL_COLOURS["memory"],
    "call": DETAIL_COLOURS["host_code"],
    "range": GREY,
    "step": GREY,
}
BESIDE_NAMES: dict[str, str] = {
    "copied": KIND_NAMES["copy"],
    "launch": "launching call",
    "sync": "synchronising call",
    "memory": "memory call",
    "call": "other call",
    "range": "NVTX range",
    "step": "step",
}
COLOURS: dict[str, str] = {
    **{kind: colour for kind, colour in KIND_COLOURS.items() if kind != "idle"},
    **FAMILY_COLOURS,
    **BESIDE_COLOURS,
}
NAMES: dict[str, str] = {**KIND_NAMES, **{family: family for family in FAMILY_COLOURS}, **BESIDE_NAMES}
