"""Make a sample run anew, or a capture of any size.

Run in data/: `python -m make mlp_a100 --out DIR`, or `python -m make capture --kernels 1000000 --out DIR`.
"""

import argparse
import sys
from pathlib import Path

from make import SAMPLES, Shape, archive, capture, own
from perfkit.errors import PerfkitError
from perfkit.report import output


def _note(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")


def main() -> None:
    """Write what the command line names into a new or empty folder."""
    parser = argparse.ArgumentParser(prog="python -m make", description=__doc__)
    parser.add_argument(
        "name",
        choices=[*SAMPLES, "experiments", "own_programs", "capture"],
        help="sample, or a capture of any size",
    )
    parser.add_argument("--out", type=Path, required=True, help="new or empty folder")
    group = parser.add_argument_group("capture")
    group.add_argument(
        "--kernels", type=int, default=100_000, help="kernels on all GPUs (default: %(default)s)"
    )
    group.add_argument(
        "--gpus", type=int, default=1, help="GPUs, each with a process (default: %(default)s)"
    )
    group.add_argument(
        "--streams", type=int, default=1, help="streams per GPU (default: %(default)s)"
    )
    group.add_argument(
        "--nccl", action="store_true", help="add an all-reduce to each training step"
    )
    group.add_argument(
        "--seed", type=int, default=0, help="seed of all random times (default: %(default)s)"
    )
    options = parser.parse_args()
    try:
        with output.replacing(options.out, None, note=_note) as folder:
            if options.name in SAMPLES:
                SAMPLES[options.name](folder)
            elif options.name == "experiments":
                archive(folder)
            elif options.name == "own_programs":
                own.archive(folder)
            else:
                shape = Shape(
                    gpus=options.gpus,
                    processes=options.gpus,
                    streams=options.streams,
                    nccl=options.nccl,
                )
                capture(
                    folder / "capture.sqlite",
                    kernels=options.kernels,
                    shape=shape,
                    seed=options.seed,
                )
    except (PerfkitError, ValueError) as e:
        parser.error(str(e))


if __name__ == "__main__":
    main()
