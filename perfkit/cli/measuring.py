"""`perfkit baseline`: what this machine can do."""

from __future__ import annotations

from pathlib import Path

import click

from perfkit.cli.messages import say


@click.group()
def baseline() -> None:
    """Measure what this machine can do, to hold programs against it (needs perfkit[torch])."""


OUT = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("baseline.json"),
    show_default=True,
    help="JSON file to make or complete; beside it a CSV file for `perfkit report --peaks`.",
)


@baseline.command("gemm")
@OUT
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Time for each precision.")
def baseline_gemm(out: Path, seconds: float) -> None:
    """Measure the rate of matrix products in each precision, on the GPU or else the CPU."""
    from perfkit.format import number
    from perfkit.workloads.baseline import ceilings, gemm, held, saved

    try:
        held(out)  # before time is spent on measuring
        measured = gemm(seconds=seconds)
        files = saved(out, gemm=measured)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    best = ceilings(measured)
    for precision, rate, is_plateau in zip(best["precision"], best["flops_per_s"], best["is_plateau"], strict=True):
        remark = "" if is_plateau else " and still rising: give more --seconds"
        click.echo(f"{precision}: {number(rate / 1e12)} TFLOP/s{remark}")
    say("\n".join(map(str, files)))


@baseline.command("copy")
@OUT
@click.option("--seconds", type=float, default=1.0, show_default=True, help="Time for each direction.")
def baseline_copy(out: Path, seconds: float) -> None:
    """Measure the bandwidth of copies between host and GPU and inside their memory."""
    from perfkit.format import size
    from perfkit.workloads.baseline import copy, held, saved

    try:
        held(out)  # before time is spent on measuring
        measured = copy(seconds=seconds)
        files = saved(out, copy=measured)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    for direction, memory, rate in zip(*(measured[c] for c in ("direction", "memory", "bytes_per_s")), strict=True):
        click.echo(f"{direction} {memory}: {size(rate)}/s")
    say("\n".join(map(str, files)))
