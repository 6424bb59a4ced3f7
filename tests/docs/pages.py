"""Pages of `docs/`: Markdown written by hand, with parts that are made."""

import re
from pathlib import Path

from docs.blocks import BLOCKS

SKILL = "docs/skills/perfkit/SKILL.md"  # the page `agents.md` as agents load it
HEAD = """---
name: perfkit
description: Find out why a GPU program is slow from recordings of profilers, with the tools of `perfkit mcp`. \
Use it for questions about Nsight, PyTorch profiler, HPCToolkit, rocprof, nvidia-smi or NCCL files.
---

"""
PART = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.S)


def pages(root: Path) -> dict[str, Path]:
    """Return the pages by their names."""
    return {page.name: page for page in sorted((root / "docs").glob("*.md"))}


def made(text: str) -> str:
    """Return a page with its made parts as perfkit's objects are now."""
    return PART.sub(_part, text)


def _part(match: re.Match[str]) -> str:
    first, name, last = match.groups()
    inner = "\n\n".join(BLOCKS[name]())
    return f"{first}\n{inner}\n\n{last}"


def skill(root: Path) -> str:
    """Return the page for agents as a skill file: with a head, and links from where that lies."""
    text = (root / "docs" / "agents.md").read_text(encoding="utf-8")
    without_itself = text.replace(
        " The same text is a skill file: `docs/skills/perfkit/SKILL.md`.", ""
    )
    return HEAD + re.sub(r"\]\((\w+\.md)", r"](../../\1", without_itself)
