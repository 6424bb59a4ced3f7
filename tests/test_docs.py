"""The README and the pages of `docs/`: made parts are true, links lead somewhere, and the README is short."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
from docs.pages import PART, SKILL, made, pages, skill
from test_testing import FORMS, Make

from docs import blocks
from perfkit import job, readers
from perfkit.cli import main
from perfkit.report.notebooks import NOTEBOOKS

ROOT = Path(__file__).parents[1]
PAGES = pages(ROOT)
MADE = [name for name, page in PAGES.items() if PART.search(page.read_text(encoding="utf-8"))]
GUIDES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md") if (ROOT / name).is_file()]
LINK = re.compile(r"\]\(([^)\s]*)\)")
pytestmark = pytest.mark.skipif(not PAGES, reason="no docs beside the tests")


def text_of(page: Path) -> str:
    """The text of a page without code, in which nothing is a link or a heading."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return [blocks.anchor(heading) for heading in headings]


def broken(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to no heading."""
    found = []
    for target in LINK.findall(text_of(page)):
        path, _, fragment = target.partition("#")
        if path.startswith(("https:", "http:")):
            continue
        to = page.parent / path if path else page
        if not to.exists() or ("#" in target and fragment not in anchors(to)):
            found.append(target)
    return found


@pytest.mark.parametrize("name", MADE)
def test_a_made_page_says_what_perfkit_says(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    assert made(text) == text, "run `python -m tests.docs --renew`"


def test_the_skill_file_is_the_page_for_agents() -> None:
    assert skill(ROOT) == (ROOT / SKILL).read_text(encoding="utf-8"), (
        "run `python -m tests.docs --renew agents.md`"
    )


@pytest.mark.parametrize(
    "page", [*GUIDES, *PAGES.values(), ROOT / SKILL], ids=lambda page: page.name
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert [] == broken(page)


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`\n\n[a](#one-two) [b](#three) [c](none.md) [d](page.md#one-two)\n",
        encoding="utf-8",
    )
    assert ["#three", "none.md"] == broken(page)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_no_two_headings_of_a_page_share_a_link(page: Path) -> None:
    twice = [anchor for anchor, count in Counter(anchors(page)).items() if count > 1]
    assert [] == twice


def test_every_page_is_in_the_index() -> None:
    linked = LINK.findall(text_of(PAGES["README.md"]))
    assert set(PAGES) - {"README.md"} <= set(linked)


@pytest.fixture
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short(readme: str) -> None:
    assert len(readme.splitlines()) <= 150


@pytest.mark.parametrize("word", ["papermill", "executive summary", "six steps"])
def test_the_readme_has_the_words_of_the_sources(readme: str, word: str) -> None:
    assert word in readme


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_readme_names_each_notebook(readme: str, name: str) -> None:
    assert f"`{name}`" in readme


@pytest.mark.parametrize("name", sorted({reader for reader, *_ in FORMS}))
def test_the_readme_links_to_each_format(readme: str, name: str) -> None:
    title = blocks.title(readers.reader(name))
    assert f"docs/formats.md#{blocks.anchor(title)}" in readme


@pytest.mark.parametrize(
    ("name", "form", "make"), FORMS, ids=[f"{name} {form}" for name, form, _ in FORMS]
)
def test_a_format_lists_the_tables_that_its_reader_gives(
    name: str, form: str, make: Make, tmp_path: Path
) -> None:
    read = readers.reader(name).read(make(tmp_path))
    assert {"CAPTURE", *read.loaders} <= set(blocks.tables_of(readers.reader(name)))


def unknown_options(text: str) -> list[str]:
    """The options in commands of perfkit that perfkit does not have."""
    found = []
    for words in re.findall(r"\bperfkit ([a-z][^`\n|]*)", text):
        command: click.Command = main
        for word in words.split():
            if isinstance(command, click.Group):
                command = command.get_command(click.Context(command), word) or command
        known = {option for param in command.params for option in param.opts}
        if command is not main:
            found += [
                option for option in re.findall(r"--[a-z][a-z-]*", words) if option not in known
            ]
    return found


@pytest.mark.parametrize("page", [*GUIDES, *PAGES.values()], ids=lambda page: page.name)
def test_commands_have_the_options_that_are_shown(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [] == unknown_options(PART.sub("", text))


def test_an_option_that_is_not_there_is_seen() -> None:
    assert ["--colour"] == unknown_options(
        "`perfkit report RUN --out x --colour red` and `perfkit record torch`"
    )


def code(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def test_the_python_of_the_readme_runs(readme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = code(readme, "python")
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(block, names)
    assert len(names["run"].kernels)


def test_the_example_of_a_job_is_a_job(tmp_path: Path) -> None:
    (block,) = code(PAGES["start.md"].read_text(encoding="utf-8"), "toml")
    (tmp_path / "perfkit.toml").write_text(block, encoding="utf-8")
    (tmp_path / "run.sqlite").touch()
    assert 7e9 == job.known({}, tmp_path / "run.sqlite").parameters


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("KERNELS `start_ns`", "kernels-start_ns"),
        ("PyTorch profiler (Kineto)", "pytorch-profiler-kineto"),
        ("`baseline_mfu_frac*`", "baseline_mfu_frac"),
    ],
)
def test_a_heading_has_the_link_that_github_gives_it(title: str, anchor: str) -> None:
    assert anchor == blocks.anchor(title)
