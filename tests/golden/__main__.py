"""Compare what perfkit says of the golden runs with the stored hashes, or store them anew.

Usage, from the root of the repository: ``python -m tests.golden [--renew] [NAME ...]``. Each NAME is a part of a run's
name; without one, all runs are compared. Both ways print what changed. ``--renew`` then stores it: put the reason for
each change into the message of the commit. PERFKIT_PROFILES names the folder of the real captures.
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from golden import freezing, stored
from golden.runs import RUNS, folders


def main() -> int:
    """Print what changed; return 1 if something did and nothing is renewed."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="part of a run's name; all runs without one"
    )
    parser.add_argument("--renew", action="store_true", help="store the new hashes")
    options = parser.parse_args()
    if "profiles" not in folders():
        parser.error("PERFKIT_PROFILES names no folder of real captures")
    known = stored.read()
    made = {}
    for golden in RUNS:
        if not options.names or any(name in golden.id for name in options.names):
            with contextlib.redirect_stdout(io.StringIO()):  # the records of the notebooks
                made[golden.id] = freezing.freeze(golden)
    changes = [
        line for name in made for line in stored.changes(known.get(name, {}), made[name], name)
    ]
    if not options.names:
        changes += [f"{name}: is no golden run any more" for name in known if name not in made]
        known = {}
    sys.stdout.writelines(
        f"{line}\n" for line in [*changes, f"{len(changes)} changes in {len(made)} runs"]
    )
    if options.renew:
        stored.write({**known, **made})
    return int(bool(changes) and not options.renew)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFKIT_CACHE"] = folder
        sys.exit(main())
