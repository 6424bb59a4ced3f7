"""perfkit against named peers, in one run: a table of ratios, each beside its bar, as Markdown.

Usage, from the root of the repository: ``python -m tests.bench [NAME ...] [--kernels N] [--keep]``. With ``--keep``
what was measured goes into tests/bench/speed.json, and the table of docs/speed.md is written from it.
"""

import argparse
import subprocess
import sys

from tests.bench import analyses, beside, commands, explorer, formats, nsys
from tests.bench.table import Row, kept, markdown

BENCHMARKS = {
    "nsys": nsys.rows,
    "beside": beside.rows,
    "launches": nsys.launch_rows,
    "analyses": analyses.rows,
    "lanes": analyses.lane_rows,
    "owners": analyses.owner_rows,
    "explorer": explorer.rows,
    "report": commands.report_rows,
    "ranks": commands.rows,
    "kineto": formats.trace_rows,
    "trace_ranks": commands.trace_rows,
    "store_ranks": commands.store_rows,
    "call_paths": formats.database_rows,
    "contexts": formats.context_rows,
    "dmon": formats.log_rows,
}


def main() -> None:
    """Run the benchmarks named on the command line, all if none is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    most = "of the largest capture; others have at most, as events and contexts too"
    parser.add_argument("--kernels", type=int, default=10_000_000, help=most)
    parser.add_argument(
        "--keep", action="store_true", help="write speed.json and the table of docs/speed.md"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(
            f"{', '.join(sorted(unknown))}: no such benchmark; there are {', '.join(BENCHMARKS)}"
        )
    rows: list[Row] = []
    for name in options.names or BENCHMARKS:
        sys.stderr.write(f"{name} ...\n")
        rows += BENCHMARKS[name](options.kernels)
    sys.stdout.write(markdown(rows))
    if options.keep:
        kept(rows)
        renew = [sys.executable, "-m", "tests.docs", "--renew", "speed.md"]
        subprocess.run(renew, check=True)


if __name__ == "__main__":
    main()
