"""Grade all submissions of a course: several at once, each written as soon as it is graded."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perfkit import parallel
from perfkit.course import judge, own, sandbox
from perfkit.course.judge import Grade, Lab
from perfkit.course.session import Session
from perfkit.errors import PerfkitError
from perfkit.report.notebooks import folder

RESULTS = "results"
MOST_FILE_BYTES = 2**30  # of a submission's files together
JUDGE_BYTES = 16 * 2**30  # of memory, for what judges the answers
NEEDED_BYTES = 2**30  # of memory, of both processes of a notebook together
Note = Callable[[str], None]
Progress = Callable[[int, int, str], object]


@dataclass(frozen=True)
class Submission:
    """A notebook that a student handed in, and how it is graded."""

    student: str
    file: Path
    lab: Path
    result: Path
    tool: str
    seed: str
    limits: sandbox.Limits

    @property
    def name(self) -> str:
        """The name of the notebook."""
        return self.lab.stem

    @property
    def key(self) -> str:
        """A digest of all that decides the grade."""
        digest = hashlib.sha256(f"{self.student}\n{self.seed}\n".encode())
        for file in (self.lab, *_files(self.file.parent)):
            digest.update(f"{file.name}\n".encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Result:
    """The grades of a notebook, and what grading it took."""

    student: str
    notebook: str
    key: str
    grades: tuple[Grade, ...]
    own_data: tuple[str, ...] = ()
    seconds: float = 0.0
    cpu_s: float = 0.0
    note: str = ""


def instructors(place: Path | None) -> dict[str, Path]:
    """Return the instructor's notebooks by name. Raises PerfkitError if there are none with hidden tests."""
    labs = place or folder() / "labs"
    found = {path.stem: path for path in sorted(labs.rglob("lab*.ipynb"))}
    if not any("BEGIN HIDDEN TESTS" in path.read_text(encoding="utf-8") for path in found.values()):
        raise PerfkitError(
            f"{labs}: holds no instructor's notebooks. Name the folder notebooks/labs of perfkit's source: --labs."
        )
    return found


def submissions(
    place: Path, labs: dict[str, Path], out: Path, tool: str, seed: str, limits: sandbox.Limits
) -> list[Submission]:
    """Return what was handed in: STUDENT/.../NOTEBOOK.ipynb; links are left out."""
    found: dict[tuple[str, str], Submission] = {}
    for student in sorted(place.iterdir()):
        for file in _files(student) if student.is_dir() and not student.is_symlink() else ():
            lab = labs.get(file.stem) if file.suffix == ".ipynb" else None
            if lab is not None:
                result = out / RESULTS / student.name / f"{file.stem}.json"
                each = Submission(student.name, file, lab, result, tool, seed, limits)
                found.setdefault((each.student, each.name), each)
    if not found:
        raise PerfkitError(f"{place}: holds no STUDENT/NOTEBOOK.ipynb of {', '.join(labs)}.")
    return list(found.values())


def grade_all(given: Sequence[Submission], jobs: int, progress: Progress, note: Note) -> None:
    """Grade what has no result yet, `jobs` at once, or one a core if that is 0.

    A submission that cannot be graded is named, and the others are graded.
    """
    for name in sorted({each.name for each in given if not each.seed and _asks_for_own(each.lab)}):
        note(f"{name}: without --seed, only the answers for the sample's programs are right")
    left = [each for each in given if _earlier(each) is None]
    workers = parallel.workers_for(NEEDED_BYTES, jobs)

    def done(number: int) -> None:
        progress(number, len(left), "notebooks")

    if len(left) < len(given):
        note(f"{len(given) - len(left)} of {len(given)} notebooks are graded already")
    made = parallel.map_reduce(left, graded, _count, _sum, workers=workers, done=done)
    for refused in made.refused:
        each = refused.source
        note(f"{each.student}: {each.name}: {refused.reason}")


def _asks_for_own(lab: Path) -> bool:
    return own.PARAMETER in Lab(lab).parameters


def results(given: Sequence[Submission]) -> list[Result]:
    """Return the results that there are."""
    read = [_earlier(each) for each in given]
    return [each for each in read if each is not None]


def graded(submission: Submission) -> Result:
    """Grade a notebook and write its result."""
    begun, used = time.monotonic(), _cpu_s()
    with _bounded():
        made = _graded(submission)
    seconds, cpu_s = time.monotonic() - begun, _cpu_s() - used
    made = replace(made, seconds=round(seconds, 1), cpu_s=round(cpu_s, 1))
    save(submission, made)
    return made


@contextmanager
def _bounded() -> Iterator[None]:
    """Let this process take JUDGE_BYTES more memory at most, so that an answer cannot fill this machine's."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = _addresses() + JUDGE_BYTES
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _addresses() -> int:
    """Return the bytes of addresses that this process has, of which most are no memory; 0 if the system hides them."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def save(submission: Submission, made: Result) -> None:
    """Write the result of a submission, whole or not at all."""
    write(submission.result, json.dumps(asdict(made), indent=1))


def _graded(submission: Submission) -> Result:
    lab = Lab(submission.lab)
    about = submission.student, submission.name, submission.key
    try:
        cells = judge.handed_in(submission.file)
    except ValueError as e:
        return Result(*about, lab.nothing, note=str(e))
    with TemporaryDirectory(prefix="perfkit-grade-") as place:
        box = Path(place)
        sandbox.prepare(box)
        _copy(submission.file.parent, box / "files")
        shown, given = lab.parameters, lab.parameters
        if submission.seed and own.PARAMETER in given:
            shown[own.PARAMETER] = own.PARAMETER
            given[own.PARAMETER] = own.prepare(submission.seed, submission.student, box)
        chosen = judge.parameters(cells)
        own_data = tuple(name for name in shown if chosen.get(name, shown[name]) != shown[name])
        with Session(submission.tool, box, submission.limits) as session, _inside(box):
            grades = judge.grade(lab, cells, session, shown, given)
    return Result(*about, tuple(grades), own_data=own_data)


def _files(place: Path) -> Iterator[Path]:
    """Yield the files below a folder; links and what is no file are left out."""
    for base, folders, names in os.walk(place, followlinks=False):
        folders.sort()
        for name in sorted(names):
            file = Path(base, name)
            if file.is_file() and not file.is_symlink():
                yield file


def _copy(source: Path, target: Path) -> None:
    """Copy the files of a submission. Raises PerfkitError if they are too large."""
    files = list(_files(source))
    if sum(file.stat().st_size for file in files) > MOST_FILE_BYTES:
        raise PerfkitError(f"{source}: its files are larger than 1 GiB together.")
    for file in files:
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


class _inside:
    """Works in a folder for the time of a block."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __enter__(self) -> None:
        self.before = os.getcwd()
        os.chdir(self.place)

    def __exit__(self, *_: object) -> None:
        os.chdir(self.before)


def _earlier(submission: Submission) -> Result | None:
    """Return the result that an earlier run wrote of the same notebook, or None."""
    try:
        content = json.loads(submission.result.read_text(encoding="utf-8"))
        grades = tuple(Grade(**grade) for grade in content.pop("grades"))
        made = Result(grades=grades, **content)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return made if made.key == submission.key else None


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _count(made: Result) -> int:
    return 1


def _sum(one: int, other: int) -> int:
    return one + other


def _cpu_s() -> float:
    """Return the CPU time of this process and of the processes that it waited for, s."""
    times: Any = os.times()
    return float(sum(times[:4]))
