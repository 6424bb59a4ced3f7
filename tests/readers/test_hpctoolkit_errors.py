"""HPCToolkit databases that are damaged, incomplete or of another version: one line that says what to do."""

from __future__ import annotations

import random
import struct
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


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_empty_cut_or_of_another_kind_or_version(name: str, tmp_path: Path) -> None:
    path = made.sample(tmp_path) / name
    whole, other = path.read_bytes(), (tmp_path / FILES[FILES.index(name) - 1]).read_bytes()
    path.write_bytes(b"")  # copying over a slow link, or a limit on file sizes, leaves such files
    assert f"{path}: the file is empty (0 bytes). {AGAIN}" == error(tmp_path)
    path.write_bytes(whole[: len(whole) - 20])
    assert error(tmp_path).startswith(f"{path}: ")
    path.write_bytes(whole[:-4])
    assert f"{path}: the file ends with {whole[-12:-4]!r}, not {whole[-8:]!r}: it is cut. {AGAIN}" == error(tmp_path)
    # A file that lost a part in its middle still has its footer: its sections tell.
    path.write_bytes(whole)
    patch = Patch(path)
    patch.set("Q", 16, 1 << 40)
    assert f"a section ends at byte {patch.section(0) + (1 << 40)}, the file has {len(patch.data)}: " in error(tmp_path)
    path.write_bytes(other)
    assert error(tmp_path).startswith(f"{path}: the file starts with {other[:14]!r}, not b'HPCTOOLKIT")
    # Where fields are changes with the major version.
    for major in (3, 5):
        path.write_bytes(whole)
        Patch(path).set("B", 14, major)
        assert f"{path}: the format is {major}.0, perfkit reads 4.x. " in error(tmp_path)
    if name in ("meta.db", "profile.db"):  # without the tree or its values there is no database
        path.unlink()
        assert f"{path}: the database lacks this file. {AGAIN}" == error(tmp_path)


def test_one_file_of_a_database_is_not_the_database(tmp_path: Path) -> None:
    path = made.sample(tmp_path) / "profile.db"
    assert not hpctoolkit.sniff(path)
    assert f"{path}: this is one of the files of an HPCToolkit database. Load its folder, {tmp_path}." == error(path)
    (tmp_path / "trace.db").unlink()
    (tmp_path / "trace.db").mkdir()  # it cannot be opened
    assert error(tmp_path).startswith(f"{tmp_path / 'trace.db'}: the file ")


def everything(path: Path) -> None:
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
        return self.get("Q", 24 + 16 * number)

    def get(self, form: str, at: int) -> int:
        return int(struct.unpack_from(f"<{form}", self.data, at)[0])

    def set(self, form: str, at: int, value: float) -> None:
        struct.pack_into(f"<{form}", self.data, at, value)
        self.path.write_bytes(bytes(self.data))


# Trees that lead nowhere; below the entry point 1 is the function 2 with line 3, and that has line 4


def tree(folder: Path) -> tuple[Patch, int, int]:
    made.database(folder, [entry(1, "main thread", function(2, "f", line(3, "a.c", 1, line(4, "a.c", 2))))])
    meta = Patch(folder / "meta.db")
    root = meta.get("Q", meta.section(CONTEXT))
    return meta, root, meta.get("Q", root + 8)


UNFIT = "do not fit into their section, or are there twice"


def test_pointers_that_lead_nowhere(tmp_path: Path) -> None:
    def check(words: str, form: str, at: int, value: int) -> None:
        tree(tmp_path)[0].set(form, at, value)
        with pytest.raises(ReadError, match=f"meta.db: .*{words}"):
            hpctoolkit.read(tmp_path).table("CALLTREE")

    meta, root, first = tree(tmp_path)
    meta.set("Q", first, meta.get("Q", root))
    meta.set("Q", first + 8, first)  # the function is its own child
    with pytest.raises(ReadError, match=UNFIT):
        hpctoolkit.read(tmp_path).table("CALLTREE")
    meta, root, first = tree(tmp_path)
    functions, size = meta.section(FUNCTIONS), meta.get("Q", root)
    check(UNFIT, "Q", first + 8, len(meta.data) + 8)  # children lie behind the end of the file
    check(UNFIT, "Q", root, 1 << 62)  # they take more bytes than there are
    check(UNFIT, "Q", root + 8, first + 1)  # they start at an odd byte
    check("does not end with its array", "Q", root, size - 8)  # the last child is cut
    # The context has a function, a file and a module, but not the bytes for them.
    check("a context is shorter than its flags say", "B", first + 20, 7)
    check("the context 3 is there more than once", "I", first + 16, 3)
    check("the context 0 is there more than once", "I", first + 16, 0)  # which stands for the whole program
    pointer = meta.get("Q", first + 32) + 8  # between two functions
    check(r"a pointer to a function \(0x[0-9a-f]+\) points at none of the 1", "Q", first + 32, pointer)
    check(f"a text would start at byte {1 << 40} and has no end", "Q", meta.get("Q", functions), 1 << 40)
    # The name of the entry point starts in the footer, which no zero ends.
    check("a text would start at byte .* and has no end", "Q", root + 24, len(meta.data) - 4)
    check("the functions are 8 bytes apart, fewer than the 36 each takes", "H", functions + 12, 8)


# Values and traces


def profile(folder: Path) -> tuple[Patch, int]:
    """A profile.db, and where the sum over all threads is described."""
    patch = Patch(made.sample(folder) / "profile.db")
    return patch, patch.get("Q", patch.section(0))


def test_values_that_lead_nowhere(tmp_path: Path) -> None:
    patch, first = profile(tmp_path)
    patch.set("I", first + 40, 0)  # values would be taken for those of one thread
    assert "profile.db: the first of 4 profiles is not the sum over all threads. " in error(tmp_path)
    patch, first = profile(tmp_path)
    patch.set("I", patch.get("Q", first + 24), 9)  # searching relies on the order: this is damage, not absent
    assert "profile.db: the contexts of profile 0 are not in order. " in error(tmp_path)
    patch, first = profile(tmp_path)
    patch.set("Q", first + 8, len(patch.data))
    assert "profile.db: the values of profile 0 would end at byte " in error(tmp_path)
    for value in (float("nan"), float("inf")):
        patch, first = profile(tmp_path)
        patch.set("d", patch.get("Q", first + 8) + 2, value)
        assert "profile.db: the values of profile 0 are not all numbers. " in error(tmp_path)


def test_traces_that_lead_nowhere(tmp_path: Path) -> None:
    for form, at, value, words in (
        ("I", 0, 99, "a trace is of profile 99, the database has 4. "),
        *(("Q", at, value, "a trace would be from byte ") for at, value in ((8, 1 << 40), (16, 7))),
    ):
        patch = Patch(made.sample(tmp_path) / "trace.db")
        patch.set(form, patch.get("Q", patch.section(0)) + at, value)
        assert f"trace.db: {words}" in error(tmp_path)
    for time, words in ((2000, "not in order of time"), (-1, "before the first or after the last")):
        patch = Patch(made.sample(tmp_path) / "trace.db")
        patch.set("Q", patch.get("Q", patch.get("Q", patch.section(0)) + 8), made.T0 + time)
        assert words in error(tmp_path)


@pytest.mark.parametrize("name", ["meta.db", "profile.db", "trace.db"])
def test_chance_damage_is_read_or_refused(name: str, tmp_path: Path) -> None:
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
