"""The commands of `perfkit` with which a course is prepared and graded."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from perfkit.terminal import progress_bar, say, say_note

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("submissions", type=FILE, metavar="SUBMISSIONS")
@click.option("--out", type=FILE, required=True, metavar="GRADES", help="Folder to complete.")
@click.option("--labs", type=FILE, help="Folder of the instructor's notebooks.")
@click.option("--seed", default="", help="The seed of `perfkit labs make`.")
@click.option(
    "--jobs", type=click.IntRange(1), help="Notebooks at once; one per core if not given."
)
@click.option(
    "--seconds", type=click.IntRange(1), default=120, show_default=True, help="Of a cell."
)
@click.option("--unsafe", is_flag=True, help="Grade without a sandbox if there is none here.")
def grade(
    submissions: Path,
    out: Path,
    labs: Path | None,
    seed: str,
    jobs: int | None,
    seconds: int,
    unsafe: bool,
) -> None:
    """Grade what students handed in, STUDENT/.../NOTEBOOK.ipynb, each notebook in a sandbox of its own.

    Run it again to go on after an interruption, or after points for prose were filled into GRADES/prose.csv.
    """
    from perfkit.course import grading, pages, sandbox

    limits = sandbox.Limits(request_s=seconds)
    tool = sandbox.tool(unsafe)
    notebooks = grading.instructors(labs)
    given = grading.submissions(submissions, notebooks, out, tool, seed, limits)
    hidden = [submissions, out, *(path.parent for path in notebooks.values())]
    for note in sandbox.doubts(tool, hidden):
        say_note(note)
    with progress_bar("grade") as progress:
        grading.grade_all(given, jobs or 0, progress, say_note)
    results = grading.results(given)
    pages.write_all(out, given, results)
    say(f"{out}: {len(results)} of {len(given)} notebooks graded, sandbox: {tool}")
    sys.exit(0 if len(results) == len(given) else 2)


@click.group()
def labs() -> None:
    """Prepare the labs of a course for its students."""


@labs.command("make")
@click.option("--students", type=FILE, required=True, help="CSV file with a column `student`.")
@click.option("--seed", required=True, help="What all captures follow from; keep it secret.")
@click.option("--out", type=FILE, default=Path("handed-out"), show_default=True, help="Folder.")
def labs_make(students: Path, seed: str, out: Path) -> None:
    """Write the labs for each student, with captures of the student's own."""
    from perfkit.course import own

    own.check_seed(seed)
    names = own.students(students)
    for name in names:
        own.hand_out(seed, name, out)
    say(f"{out}: the labs of {len(names)} students")


@labs.command("bundle")
@click.option("--out", type=FILE, default=Path("bundle"), show_default=True, help="Folder.")
def labs_bundle(out: Path) -> None:
    """Write all that a class needs to install perfkit and its labs without a network."""
    from perfkit.course import bundle

    say(bundle.write(out))


@labs.command("slides")
@click.option("--out", type=FILE, default=Path("slides"), show_default=True, help="Folder.")
@click.option("--labs", type=FILE, help="Folder of labs that were run: their outputs are shown.")
def labs_slides(out: Path, labs: Path | None) -> None:
    """Write the labs as slides, a page for each that a browser shows without a network."""
    from perfkit.course import slides

    say(f"{out}: the slides of {len(slides.write(out, labs))} labs")
