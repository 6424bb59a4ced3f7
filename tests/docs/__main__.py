"""Compare the made parts of `docs/` with perfkit's objects, or write them anew.

Usage, from the root of the repository: ``python -m tests.docs [--renew] [PAGE ...]``.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "data")]

from docs.pages import SKILL, made, pages, skill  # noqa: E402  found through the path above


def main() -> None:
    """Compare or renew all pages, or those named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=__doc__)
    parser.add_argument(
        "pages", nargs="*", metavar="PAGE", help="such as findings.md; all if none is named"
    )
    parser.add_argument("--renew", action="store_true", help="write the pages")
    options = parser.parse_args()
    known = pages(ROOT)
    unknown = set(options.pages) - set(known)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such page; there are {', '.join(known)}")
    changed = []
    for name in options.pages or known:
        page = known[name]
        text = page.read_text(encoding="utf-8")
        if made(text) == text:
            continue
        changed.append(name)
        if options.renew:
            page.write_text(made(text), encoding="utf-8")
    if "agents.md" in (options.pages or known) and options.renew:
        (ROOT / SKILL).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / SKILL).write_text(skill(ROOT), encoding="utf-8")
    for name in changed:
        sys.stdout.write(
            f"docs/{name}: {'renewed' if options.renew else 'is not what perfkit says now'}\n"
        )
    sys.exit(bool(changed) and not options.renew)


if __name__ == "__main__":
    main()
