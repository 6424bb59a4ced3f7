"""perfkit against named peers, in one run: a table of ratios, each beside its bar, as Markdown.

Usage, from the root of the repository: ``python -m tests.bench [NAME ...] [--kernels N] [--keep]``. With ``--keep``
what was measured goes into tests/bench/speed.json, and the README's table is written from it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench import (
    analyses,
    call_paths,
    dmon,
    explorer,
    kineto,
    lanes,
    launches,
    nsys,
    ranks,
    report,
    store_ranks,
    trace_ranks,
)
from tests.bench.table import README_HEAD, Row, kept, markdown, readme

BENCHMARKS = {
    "nsys": nsys.rows,
    "launches": launches.rows,
    "analyses": analyses.rows,
    "lanes": lanes.rows,
    "explorer": explorer.rows,
    "report": report.rows,
    "ranks": ranks.rows,
    "kineto": kineto.rows,
    "trace_ranks": trace_ranks.rows,
    "store_ranks": store_ranks.rows,
    "call_paths": call_paths.real_rows,
    "contexts": call_paths.made_rows,
    "dmon": dmon.rows,
}


def main() -> None:
    """Run the benchmarks named on the command line, all if none is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--kernels",
        type=int,
        default=10_000_000,
        help="of the largest capture; others have at most, as events and contexts too",
    )
    parser.add_argument("--keep", action="store_true", help="write speed.json and the README's table")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such benchmark; there are {', '.join(BENCHMARKS)}")
    rows: list[Row] = []
    for name in options.names or BENCHMARKS:
        sys.stderr.write(f"{name} ...\n")
        rows += BENCHMARKS[name](options.kernels)
    sys.stdout.write(markdown(rows))
    if options.keep:
        kept(rows)
        page = Path("README.md")
        before, _, rest = page.read_text(encoding="utf-8").partition(README_HEAD)
        after = rest.partition("\n\n")[2]
        page.write_text(f"{before}{readme()}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
