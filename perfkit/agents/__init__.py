"""What an agent may ask about runs: `perfkit mcp`, a read-only server of the Model Context Protocol.

The answers are made of the objects of the report: doubts, phases, ledger, findings, figures, tables and refusals.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from perfkit.errors import PerfkitError


def serve(folders: Sequence[Path]) -> None:
    """Answer questions on standard input until it ends; PerfkitError without the package mcp."""
    if find_spec("mcp") is None:
        raise PerfkitError("mcp: the package mcp is missing. Install perfkit[mcp].")
    from perfkit.agents.server import server

    server(folders).run()
