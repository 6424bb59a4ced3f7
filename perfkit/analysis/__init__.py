"""Questions asked of the tables: tables in, tables or numbers out; nothing is drawn or read here."""

from perfkit.analysis import (
    access,
    communication,
    dossier,
    gaps,
    host,
    kernels,
    launches,
    occupancy,
    roofline,
    stalls,
    steps,
    targets,
    timeline,
    transfers,
)

__all__ = [
    "access",
    "communication",
    "dossier",
    "gaps",
    "host",
    "kernels",
    "launches",
    "occupancy",
    "roofline",
    "stalls",
    "steps",
    "targets",
    "timeline",
    "transfers",
]
