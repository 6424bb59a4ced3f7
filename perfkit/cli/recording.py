"""`perfkit record`: what records a profile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from perfkit.cli.messages import say
from perfkit.cli.types import WhenType
from perfkit.errors import PerfkitError


@click.group()
def record() -> None:
    """Say or do what records a profile."""


@record.command("torch")
def record_torch() -> None:
    """Print the lines that record a PyTorch program."""
    from perfkit.workloads.record import SNIPPET

    click.echo(SNIPPET, nl=False)


@record.command("prometheus")
@click.argument("url")
@click.option("--start", type=WhenType(), required=True, help="For example 2026-01-31T10:00:00Z, or s since 1970.")
@click.option("--end", type=WhenType(), help="Now if not given.")
@click.option("--step", type=float, default=15.0, show_default=True, help="Distance of the points in s.")
@click.option("--match", default="", help="Label matchers, for example 'Hostname=~\"node0[12]\"'.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("gpus.json"), show_default=True, help="File to write."
)
def record_prometheus(url: str, start: float, end: float | None, step: float, match: str, out: Path) -> None:
    """Store the GPU metrics of a time range that the Prometheus server at URL has scraped."""
    from perfkit.readers.dcgm.prometheus import fetch

    if os.path.lexists(out) and not out.is_dir():
        raise PerfkitError(f"{out}: the file is there already. Choose another --out, or remove it.")
    try:
        say(fetch(url, start, time.time() if end is None else end, step, out, match=match))
    except ValueError as e:
        raise click.UsageError(str(e)) from e
