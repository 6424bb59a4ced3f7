"""Write what an instructor and the students read of graded submissions: tables as CSV, and a page for each student."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from perfkit.course import similar
from perfkit.course.grading import Result, Submission, write
from perfkit.course.judge import Grade, Lab, handed_in, task_of

PROSE = "prose.csv"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet would begin to compute
HEAD = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>'
    "body{{font:1rem/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}"
    "table{{border-collapse:collapse;width:100%}}"
    "th,td{{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #767676}}"
    "</style><h1>{title}</h1>"
)
ByHand = Mapping[tuple[str, str, str], tuple[float | None, str]]


def write_all(out: Path, given: Sequence[Submission], results: Sequence[Result]) -> None:
    """Write grades.csv, prose.csv, similar.csv, and a page for each student into `out`."""
    by_hand = read_prose(out / PROSE)
    write(out / "grades.csv", table(grade_rows(results, by_hand)))
    write(out / PROSE, table(prose_rows(results, by_hand)))
    write(out / "similar.csv", table(similar_rows(given), ("notebook", "task", "students")))
    students: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        students[result.student].append(result)
    for student, own in students.items():
        write(out / "feedback" / f"{student}.html", page(student, own, by_hand))


def grade_rows(results: Sequence[Result], by_hand: ByHand) -> list[dict[str, Any]]:
    """Return a row for each notebook; points of prose are empty until all of it is graded."""
    rows = []
    for result in results:
        tests = [grade for grade in result.grades if not grade.is_prose]
        prose = [grade for grade in result.grades if grade.is_prose]
        given = [_points(result, grade, by_hand)[0] for grade in prose]
        is_complete = None not in given
        rows.append(
            {
                "student": result.student,
                "notebook": result.notebook,
                "tests": sum(grade.points or 0.0 for grade in tests),
                "tests_most": sum(grade.most for grade in tests),
                "prose": sum(points or 0.0 for points in given) if is_complete else "",
                "prose_most": sum(grade.most for grade in prose),
                "own_data": " ".join(result.own_data),
                "note": result.note,
            }
        )
    return rows


def prose_rows(results: Sequence[Result], by_hand: ByHand) -> list[dict[str, Any]]:
    """Return a row for each answer in prose: an instructor fills in points and comment, and grades again."""
    rows = []
    for result in results:
        for grade in result.grades:
            if grade.is_prose:
                points, comment = _points(result, grade, by_hand)
                row: dict[str, Any] = {
                    "student": result.student,
                    "notebook": result.notebook,
                    "task": grade.task,
                }
                row |= {"points": "" if points is None else points, "most": grade.most}
                rows.append({**row, "comment": comment, "answer": grade.answer})
    return rows


def read_prose(path: Path) -> dict[tuple[str, str, str], tuple[float | None, str]]:
    """Return the points and comments that an instructor filled in."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        (row["student"], row["notebook"], row["task"]): (
            float(row["points"]) if row["points"].strip() else None,
            row["comment"],
        )
        for row in rows
    }


def similar_rows(given: Sequence[Submission]) -> list[dict[str, Any]]:
    """Return which students wrote the same code for a task."""
    answers: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    usual: dict[tuple[str, str], str] = {}
    labs = {each.lab: Lab(each.lab) for each in given}
    for each in given:
        usual |= {(each.name, task): code for task, code in labs[each.lab].solutions.items()}
        for task, code in _codes(each).items():
            if (each.name, task) in usual:
                answers[each.name, task][each.student] = code
    return similar.groups(answers, usual)


def _codes(submission: Submission) -> dict[str, str]:
    try:
        cells = handed_in(submission.file)
    except ValueError:  # its result says so
        return {}
    return {task_of(cell): cell.source for cell in cells if cell.cell_type == "code"}


def table(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = ()) -> str:
    """Return rows as CSV, in which no text of a student's is a formula."""
    names = list(columns) or list(rows[0] if rows else ())
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(row[name]) for name in names} for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.startswith(FORMULA)
    return f"'{value}" if is_formula else value


def page(student: str, results: Sequence[Result], by_hand: ByHand) -> str:
    """Return a student's feedback as HTML: each task with its points, and what to look at again."""
    parts = [HEAD.format(title=f"Feedback for {escape(student)}")]
    for result in results:
        rows = [(grade, *_points(result, grade, by_hand)) for grade in result.grades]
        total = sum(points or 0.0 for _, points, _ in rows)
        most = sum(grade.most for grade, _, _ in rows)
        parts.append(f"<h2>{escape(result.notebook)}: {total:g} of {most:g} points</h2>")
        if result.note:
            parts.append(f"<p>{escape(result.note)}</p>")
        head = "".join(f'<th scope="col">{name}' for name in ("task", "points", "what to look at"))
        parts.append(f"<table><tr>{head}")
        for grade, points, comment in rows:
            shown = "not graded yet" if points is None else f"{points:g}"
            cells = f"<td>{shown} of {grade.most:g}<td>{escape(comment or grade.words)}"
            parts.append(f'<tr><th scope="row">{escape(grade.task)}{cells}')
        parts.append("</table>")
    return "\n".join(parts) + "\n"


def _points(result: Result, grade: Grade, by_hand: ByHand) -> tuple[float | None, str]:
    """Return the points of a task and an instructor's comment; what was given by hand counts for prose alone."""
    key = result.student, result.notebook, grade.task
    if not grade.is_prose or key not in by_hand:
        return grade.points, ""
    points, comment = by_hand[key]
    return grade.points if points is None else points, comment
