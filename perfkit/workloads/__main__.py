"""`python -m perfkit.workloads`: time and record one of the labs' models."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfkit import hardware, workloads
from perfkit.errors import PerfkitError
from perfkit.format import duration, number, percent
from perfkit.workloads import (
    DEVICES,
    MODELS,
    MODES,
    PRECISIONS,
    SIZES,
    TRACED,
    WARM_UP,
    Loader,
    Plan,
    experiments,
)
from perfkit.workloads.experiments import REPEATS, record

HEADER = ("batch", "step (median)", "p25 to p75", "wait", "samples/s", "GFLOP/s", "of peak")
DIMENSIONS = ("image", "sequence", "layers", "hidden", "heads", "vocabulary")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 if perfkit refuses, or 2 if the arguments are wrong."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_experiment = words[:1] == ["experiment"]
    parser = _experimenter() if is_experiment else _parser()
    given = parser.parse_args(words[is_experiment:])
    try:
        for experiment in [experiments.find(name) for name in given.names] if is_experiment else ():
            lines = experiment.lines(given.device, given.out, given.repeats)
            _say("\n".join([f"# {experiment.topic}: {experiment.question}", *lines.values()]))
            if not given.print_commands:
                folders = record(experiment, given.device, given.out, given.repeats)
                paths = {str(path): label for label, repeats in folders.items() for path in repeats}
                _say(
                    shlex.join(["perfkit", "compare", *paths, "--labels", ",".join(paths.values())])
                )
        if not is_experiment:
            _run(_plan(given), given)
    except ValueError as e:
        parser.error(str(e))
    except PerfkitError as e:
        sys.stderr.write(f"{e}\n")
        return 1
    return 0


def _experimenter() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perfkit.workloads experiment",
        description="Record the runs before and after a change, to be compared.",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(experiments.EXPERIMENTS))
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="folder for the runs (default: runs)"
    )
    repeats = f"record every run so often, in turn, so that what differs between runs shows (default: {REPEATS})"
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help=repeats)
    parser.add_argument(
        "--print-commands", action="store_true", help="only print what would be run"
    )
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perfkit.workloads",
        description="Time one of the labs' models, and record it into a folder for `perfkit report`.",
        epilog="Pairs of runs before and after one change: python -m perfkit.workloads experiment --help",
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--mode", choices=MODES, default="train")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[128], help="one or several; the last is recorded"
    )
    parser.add_argument(
        "--steps", type=int, default=50, help="timed steps per batch size (default: 50)"
    )
    warming = ", ".join(f"{steps} on {kind}" for kind, steps in WARM_UP.items())
    parser.add_argument("--warm-up", type=int, help=f"steps before them (default: {warming})")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="fp16 and bf16 by autocast"
    )
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    reading = "after every step, or so many, which waits for the GPU"
    parser.add_argument(
        "--read-loss", type=int, nargs="?", const=1, default=0, metavar="STEPS", help=reading
    )
    parser.add_argument("--seed", type=int, default=0)
    group = parser.add_argument_group("size of ResNet's images and of BERT")
    group.add_argument(
        "--scale", choices=tuple(SIZES), default="full", help="small is for trying things out"
    )
    for name in DIMENSIONS:
        sizes = ", ".join(f"{getattr(size, name)} if {scale}" for scale, size in SIZES.items())
        group.add_argument(f"--{name}", type=int, help=sizes)
    group = parser.add_argument_group("data", "through PyTorch's DataLoader")
    group.add_argument(
        "--resident", action="store_true", help="instead one batch that stays on the device"
    )
    group.add_argument(
        "--workers",
        type=int,
        default=0,
        help="processes that load (default: 0, the program itself)",
    )
    group.add_argument(
        "--pin-memory", action="store_true", help="and copy to the GPU without waiting"
    )
    group.add_argument("--prefetch", type=int, help="batches that each worker loads ahead")
    group.add_argument(
        "--persistent", action="store_true", help="keep the workers after each epoch of 100 batches"
    )
    group = parser.add_argument_group("recording")
    group.add_argument(
        "--record", type=Path, metavar="FOLDER", help="empty or new; trace, timings and captures"
    )
    group.add_argument(
        "--traced", type=int, default=TRACED, help=f"steps that the trace holds (default: {TRACED})"
    )
    group.add_argument(
        "--gpu-metrics",
        action="store_true",
        help="nsys samples the GPU's counters; needs a permission",
    )
    group.add_argument(
        "--print-commands", action="store_true", help="only print how NVIDIA's tools are called"
    )
    group.add_argument(
        "--peaks", type=Path, metavar="CSV", help="peaks of one's own to compare with"
    )
    group.add_argument(
        workloads.MARKED, action="store_true", help="show a profiler where the timed steps are"
    )
    return parser


def _plan(given: argparse.Namespace) -> Plan:
    """Return the plan that the arguments give; ValueError if it cannot be run."""
    size = {name: value for name in DIMENSIONS if (value := getattr(given, name)) is not None}
    chosen = (
        "mode",
        "device",
        "steps",
        "warm_up",
        "precision",
        "compile",
        "read_loss",
        "seed",
        "traced",
    )
    loading = ("resident", "workers", "pin_memory", "prefetch", "persistent")
    if given.mark_steps and given.device != "cuda":
        raise ValueError("mark-steps: marks steps for NVIDIA's tools, and the device is not 'cuda'")
    return Plan(
        given.model,
        batches=tuple(given.batch),
        size=replace(SIZES[given.scale], **size),
        loader=Loader(**{name: getattr(given, name) for name in loading}),
        **{name: getattr(given, name) for name in chosen},
    )


def _run(plan: Plan, given: argparse.Namespace) -> None:
    if given.print_commands:
        _say(
            "\n".join(
                workloads.lines(plan, given.record or Path("out"), gpu_metrics=given.gpu_metrics)
            )
        )
        return
    from perfkit.workloads import running

    peaks = hardware.load_peaks(given.peaks) if given.peaks else None
    if given.record is None:
        _say(_table(running.measure(plan, peaks=peaks, is_marked=given.mark_steps)))
        return
    content = running.record(plan, given.record, peaks=peaks, gpu_metrics=given.gpu_metrics)
    made = [f"{tool}: {outcome}" for tool, outcome in content["captures"].items()]
    _say("\n".join([_table(content["rows"]), "", *made, f"perfkit report {given.record}"]))


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [HEADER, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in cells)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    frac = row["peak_frac"]
    return (
        str(row["batch_count"]),
        duration(row["step_median_ns"]),
        f"{duration(row['step_p25_ns'])} to {duration(row['step_p75_ns'])}",
        duration(row["wait_median_ns"]),
        number(row["samples_per_s"]),
        number(row["flops_per_s"] / 1e9),
        "not known" if frac is None else percent(frac),
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
