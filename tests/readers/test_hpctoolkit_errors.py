"""HPCToolkit databases that are damaged, incomplete or of another version: one line that says what to do."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from readers import hpctoolkit_files as made
from readers.hpctoolkit_files import entry, function, line

import perfkit
from perfkit.errors import ReadError
from perfkit.readers import hpctoolkit

FILES = ["cct.db", "meta.db", "profile.db", "trace.db"]
GENERAL, IDENTITIES, METRICS, CONTEXT, STRINGS, MODULES, SOURCES, FUNCTIONS = range(8)
AGAIN = "Copy the database again, or make it anew with `hpcprof`."

every_file = pytest.mark.parametrize("name", FILES)


def everything(path: Path) -> None:
    """Read all tables of a run."""
    run = perfkit.load(path)
    for name in run.profiles[0].loaders:
        run.table(name)


def error(path: Path) -> str:
    """What reading everything says; one line with what to do."""
    with pytest.raises(ReadError) as caught:
        everything(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Patch:
    """A file of a database that is changed in place."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, bytearray(path.read_bytes())

    def section(self, number: int) -> int:
        """Where a section starts."""
        return int(struct.unpack_from("<Q", self.data, 24 + 16 * number)[0])

    def get(self, form: str, at: int) -> int:
        """A number."""
        return int(struct.unpack_from(f"<{form}", self.data, at)[0])

    def set(self, form: str, at: int, value: float) -> None:
        """Change a number."""
        struct.pack_into(f"<{form}", self.data, at, value)
        self.path.write_bytes(bytes(self.data))


@every_file
def test_a_file_of_no_bytes(name: str, tmp_path: Path) -> None:
    """Copying over a slow link, or a limit on file sizes, leaves empty files."""
    (made.sample(tmp_path) / name).write_bytes(b"")
    assert f"{tmp_path / name}: the file is empty (0 bytes). {AGAIN}" == error(tmp_path)


@pytest.mark.parametrize("name", ["meta.db", "profile.db"])
def test_a_file_that_is_needed(name: str, tmp_path: Path) -> None:
    """Without the tree or its values there is no database: the file that lacks is named."""
    (made.sample(tmp_path) / name).unlink()
    assert f"{tmp_path / name}: the database lacks this file. {AGAIN}" == error(tmp_path)


@every_file
def test_a_cut_file(name: str, tmp_path: Path) -> None:
    """A file that ends early is named, with what was found."""
    path = made.sample(tmp_path) / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 20])
    assert error(tmp_path).startswith(f"{path}: ")
    path.write_bytes(whole[:-4])
    assert f"{path}: the file ends with {whole[-12:-4]!r}, not {whole[-8:]!r}: it is cut. {AGAIN}" == error(tmp_path)


@every_file
def test_a_section_beyond_the_end(name: str, tmp_path: Path) -> None:
    """A file that lost a part in its middle still has its footer: its sections tell."""
    patch = Patch(made.sample(tmp_path) / name)
    patch.set("Q", 16, 1 << 40)
    assert f"a section ends at byte {patch.section(0) + (1 << 40)}, the file has {len(patch.data)}: " in error(tmp_path)


@every_file
def test_a_file_of_another_kind(name: str, tmp_path: Path) -> None:
    """A file under another's name is told by its first bytes."""
    other = (made.sample(tmp_path) / FILES[FILES.index(name) - 1]).read_bytes()
    (tmp_path / name).write_bytes(other)
    assert error(tmp_path).startswith(f"{tmp_path / name}: the file starts with {other[:14]!r}, not b'HPCTOOLKIT")


@every_file
@pytest.mark.parametrize("major", [3, 5])
def test_another_major_version(name: str, major: int, tmp_path: Path) -> None:
    """Where fields are changes with the major version: it is refused, with the version found."""
    Patch(made.sample(tmp_path) / name).set("B", 14, major)
    assert f"{tmp_path / name}: the format is {major}.0, perfkit reads 4.x. " in error(tmp_path)


def test_one_file_of_a_database_is_not_the_database(tmp_path: Path) -> None:
    """profile.db alone is claimed by nobody, and the folder is named."""
    path = made.sample(tmp_path) / "profile.db"
    assert not hpctoolkit.sniff(path)
    assert f"{path}: this is one of the files of an HPCToolkit database. Load its folder, {tmp_path}." == error(path)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """A folder where a file should be, or no permission, is an error like others."""
    (made.sample(tmp_path) / "trace.db").unlink()
    (tmp_path / "trace.db").mkdir()
    assert error(tmp_path).startswith(f"{tmp_path / 'trace.db'}: the file ")


# Trees that lead nowhere; below the entry point 1 is the function 2 with line 3, and that has line 4


def tree(folder: Path) -> tuple[Patch, int, int]:
    """A meta.db, where its entry point is, and where the function below it."""
    made.database(folder, [entry(1, "main thread", function(2, "f", line(3, "a.c", 1, line(4, "a.c", 2))))])
    meta = Patch(folder / "meta.db")
    root = meta.get("Q", meta.section(CONTEXT))
    return meta, root, meta.get("Q", root + 8)


def to_itself(meta: Patch, root: int, first: int) -> None:
    """The function is its own child."""
    meta.set("Q", first, meta.get("Q", root))
    meta.set("Q", first + 8, first)


def beyond(meta: Patch, root: int, first: int) -> None:
    """Children lie behind the end of the file."""
    meta.set("Q", first + 8, len(meta.data) + 8)


def too_many(meta: Patch, root: int, first: int) -> None:
    """Children take more bytes than there are."""
    meta.set("Q", root, 1 << 62)


def too_few(meta: Patch, root: int, first: int) -> None:
    """The last child is cut."""
    meta.set("Q", root, meta.get("Q", root) - 8)


def not_aligned(meta: Patch, root: int, first: int) -> None:
    """Children start at an odd byte."""
    meta.set("Q", root + 8, first + 1)


def short(meta: Patch, root: int, first: int) -> None:
    """The context has a function, a file and a module, but not the bytes for them."""
    meta.set("B", first + 20, 7)


def twice(meta: Patch, root: int, first: int) -> None:
    """Two contexts have one number."""
    meta.set("I", first + 16, 3)


def global_context(meta: Patch, root: int, first: int) -> None:
    """A context has the number that stands for the whole program."""
    meta.set("I", first + 16, 0)


def no_function(meta: Patch, root: int, first: int) -> None:
    """The function's pointer points between two."""
    meta.set("Q", first + 32, meta.get("Q", first + 32) + 8)


def no_name(meta: Patch, root: int, first: int) -> None:
    """The function's name starts behind the end of the file."""
    meta.set("Q", meta.get("Q", meta.section(FUNCTIONS)), 1 << 40)


def endless_name(meta: Patch, root: int, first: int) -> None:
    """The name of the entry point starts in the footer, which no zero ends."""
    meta.set("Q", root + 24, len(meta.data) - 4)


def too_near(meta: Patch, root: int, first: int) -> None:
    """Functions are said to take fewer bytes than they have fields."""
    meta.set("H", meta.section(FUNCTIONS) + 12, 8)


DAMAGES = {
    to_itself: "do not fit into their section, or are there twice",
    beyond: "do not fit into their section, or are there twice",
    too_many: "do not fit into their section, or are there twice",
    not_aligned: "do not fit into their section, or are there twice",
    too_few: "does not end with its array",
    short: "a context is shorter than its flags say",
    twice: "the context 3 is there more than once",
    global_context: "the context 0 is there more than once",
    no_function: r"a pointer to a function \(0x[0-9a-f]+\) points at none of the 1",
    no_name: f"a text would start at byte {1 << 40} and has no end",
    endless_name: "a text would start at byte .* and has no end",
    too_near: "the functions are 8 bytes apart, fewer than the 36 each takes",
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.items(), ids=[d.__name__ for d in DAMAGES])
def test_pointers_that_lead_nowhere(damage: Callable[[Patch, int, int], None], words: str, tmp_path: Path) -> None:
    """Every damage is found, named with its file, and none loops forever."""
    damage(*tree(tmp_path))
    with pytest.raises(ReadError, match=f"meta.db: .*{words}"):
        hpctoolkit.read(tmp_path).table("CALLTREE")


# Values and traces


def profile(folder: Path) -> tuple[Patch, int]:
    """A profile.db, and where the sum over all threads is described."""
    patch = Patch(made.sample(folder) / "profile.db")
    return patch, patch.get("Q", patch.section(0))


def test_the_first_profile_is_the_sum(tmp_path: Path) -> None:
    """Without the sum over all threads at its place, values would be taken for those of one thread."""
    patch, first = profile(tmp_path)
    patch.set("I", first + 40, 0)
    assert "profile.db: the first of 4 profiles is not the sum over all threads. " in error(tmp_path)


def test_contexts_of_a_profile_are_in_order(tmp_path: Path) -> None:
    """Searching relies on the order: contexts that are not in order are damage, not absent."""
    patch, first = profile(tmp_path)
    patch.set("I", patch.get("Q", first + 24), 9)
    assert "profile.db: the contexts of profile 0 are not in order. " in error(tmp_path)


def test_values_lie_in_the_file(tmp_path: Path) -> None:
    """More values than bytes are damage."""
    patch, first = profile(tmp_path)
    patch.set("Q", first + 8, len(patch.data))
    assert "profile.db: the values of profile 0 would end at byte " in error(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_are_numbers(value: float, tmp_path: Path) -> None:
    """A value that is not a number is damage: sums would become so too."""
    patch, first = profile(tmp_path)
    patch.set("d", patch.get("Q", first + 8) + 2, value)
    assert "profile.db: the values of profile 0 are not all numbers. " in error(tmp_path)


@pytest.mark.parametrize(
    ("form", "at", "value", "words"),
    [
        ("I", 0, 99, "a trace is of profile 99, the database has 4. "),
        ("Q", 8, 1 << 40, "a trace would be from byte "),
        ("Q", 16, 7, "a trace would be from byte "),
    ],
)
def test_traces_that_lead_nowhere(form: str, at: int, value: int, words: str, tmp_path: Path) -> None:
    """A trace of no thread, one outside the file and one that ends before it starts."""
    patch = Patch(made.sample(tmp_path) / "trace.db")
    patch.set(form, patch.get("Q", patch.section(0)) + at, value)
    assert f"trace.db: {words}" in error(tmp_path)


@pytest.mark.parametrize(
    ("time", "words"), [(2000, "not in order of time"), (-1, "before the first or after the last")]
)
def test_times_of_a_trace(time: int, words: str, tmp_path: Path) -> None:
    """A stretch does not end before it starts, and none is outside the recording."""
    patch = Patch(made.sample(tmp_path) / "trace.db")
    first = patch.get("Q", patch.get("Q", patch.section(0)) + 8)
    patch.set("Q", first, made.T0 + time)
    assert words in error(tmp_path)


@pytest.mark.parametrize("name", ["meta.db", "profile.db", "trace.db"])
def test_chance_damage_is_read_or_refused(name: str, tmp_path: Path) -> None:
    """Whatever eight bytes are overwritten: all tables, or ReadError with the file's name."""
    path = made.sample(tmp_path) / name
    whole, chance = path.read_bytes(), random.Random(1)
    said = []
    for _ in range(40):
        at = chance.randrange(len(whole) - 8)
        replacement = chance.choice([b"\xff" * 8, bytes(8), chance.randbytes(8), struct.pack("<Q", at)])
        path.write_bytes(whole[:at] + replacement + whole[at + 8 :])
        try:
            profile = hpctoolkit.read(tmp_path)
            for table in profile.loaders:
                profile.table(table)
        except ReadError as e:
            said.append(str(e))
    assert 0 < len(said) < 40
    assert all(message.startswith(f"{tmp_path}") for message in said)
