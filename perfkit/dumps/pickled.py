"""Pickles of plain data: numbers, texts, lists, tuples and dictionaries. Nothing in a file is ever run.

`pickle.load` runs what a file asks for. This reader knows only the opcodes of plain data, as
`pickletools` describes them; it refuses each other one by its name. A file makes no object larger
than itself, and the number of objects that are alive at once is limited.
"""

import mmap
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.errors import ReadError

MOST_OBJECTS = 4_000_000  # lists, dictionaries and tuples that are alive at once: about 1 GB
MOST_WAITING = 4_000_000  # values on the stack, of which PyTorch's writers leave a few thousand
LONGEST_NUMBER = 8  # bytes of a whole number
BEGINS = tuple(bytes((0x80, version)) for version in (2, 3, 4, 5))
NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
AGAIN = "Write the dump again, or copy it again."

Shrink = Callable[[dict[Any, Any]], object]


class Damaged(ValueError):
    """What is wrong with the bytes of a pickle, in words."""


def load(path: Path, *, shrink: Shrink | None = None) -> object:
    """Return the plain data of a pickle.

    `shrink` gets each dictionary that is put into a list, and returns what the list holds in its
    place: of a list of millions of dictionaries, memory then holds none. ReadError for a pickle
    that is damaged, or that could run code.
    """
    try:
        if path.stat().st_size == 0:
            raise Damaged("it is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Machine(data, shrink).run()
    except OSError as e:
        raise ReadError(
            f"{path}: the file cannot be opened ({e.strerror}). Check its permissions."
        ) from e
    except Damaged as e:
        raise ReadError(f"{path}: the pickle cannot be read: {e}. {AGAIN}") from e


class _Machine:
    """The stack machine of a pickle, with the opcodes of plain data.

    `stack` holds the values since the last mark, `marks` the stacks below. `memo` holds values that
    the file may use again, by their number; `number_of` has those of dictionaries, by identity. A
    dictionary that is shrunk leaves both, or a memo of millions would hold them.
    """

    def __init__(self, data: "mmap.mmap", shrink: Shrink | None) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.number_of: dict[int, int] = {}
        self.remembered = 0
        self.shrink = shrink
        self.objects = 0
        self.waiting = 0

    def run(self) -> object:
        """Return what the pickle holds."""
        data, end, steps = self.data, len(self.data), STEPS
        try:
            while self.at < end:
                code = data[self.at]
                self.at += 1
                if code == BINGET:  # with the next one, more than half of a snapshot of memory
                    self.stack.append(self.memo[data[self.at]])
                    self.at += 1
                    continue
                if code == LONG_BINGET:
                    begin = self.at
                    self.at = begin + 4
                    number = int.from_bytes(data[begin : self.at], "little")
                    self.stack.append(self.memo[number])
                    continue
                if code == STOP:
                    return self.stack.pop()
                step = steps[code]
                if step is None:
                    raise self._refused(code)
                step(self)
        except (IndexError, KeyError, TypeError, struct.error, UnicodeDecodeError) as e:
            raise Damaged(f"byte {self.at:,} contradicts what is before it") from e
        raise Damaged(f"it ends after {end:,} bytes, before its end mark")

    def _refused(self, code: int) -> Damaged:
        name = NAMES.get(code)
        where = f"at byte {self.at - 1:,}"
        if name is None:
            return Damaged(f"{code:#04x} {where} is no opcode")
        return Damaged(
            f"it holds the opcode {name} {where}, which plain data does not need, "
            "and which may run code. perfkit runs nothing that is in a file"
        )

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        begin = self.at
        self.at = begin + count
        taken = self.data[begin : self.at]
        if len(taken) < count:
            raise Damaged(f"it ends inside of a value of {count:,} bytes at byte {begin:,}")
        return taken

    def number(self, count: int) -> int:
        """Return the next bytes as a whole number of 0 or more."""
        return int.from_bytes(self.take(count), "little")

    def push(self, value: object) -> None:
        """Put a value onto the stack."""
        self.stack.append(value)

    def made(self, value: object) -> None:
        """Put a new list, dictionary or tuple onto the stack."""
        self.objects += 1
        if self.objects > MOST_OBJECTS:
            raise Damaged(f"it holds more than {MOST_OBJECTS:,} objects at once")
        self.stack.append(value)

    def text(self, count: int) -> None:
        """Put the next bytes onto the stack as a text."""
        self.stack.append(self.take(count).decode("utf-8", "surrogatepass"))

    def whole(self, count: int) -> None:
        """Put a signed whole number of so many bytes onto the stack."""
        if count > LONGEST_NUMBER:
            raise Damaged(f"it holds a number of {count:,} bytes")
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def mark(self) -> None:
        """Begin a group of values."""
        self.waiting += len(self.stack) + 1
        if self.waiting > MOST_WAITING:
            raise Damaged(f"more than {MOST_WAITING:,} values wait at byte {self.at:,}")
        self.marks.append(self.stack)
        self.stack = []

    def group(self) -> list[Any]:
        """Return the values since the last mark, and forget the mark."""
        values = self.stack
        self.stack = self.marks.pop()
        self.waiting -= len(self.stack) + 1
        return values

    def tupled(self, count: int) -> None:
        """Make the last values a tuple."""
        values = tuple(self.stack[-count:])
        if len(values) < count:
            raise IndexError
        del self.stack[-count:]
        self.made(values)

    def set_items(self, values: list[Any]) -> None:
        """Put keys and values into the dictionary on the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise TypeError
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | int):
                raise TypeError
            target[key] = value

    def append(self, values: list[Any]) -> None:
        """Put values into the list on the stack, shrunk where somebody asked for it."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError
        if self.shrink is None:
            target.extend(values)
            return
        for value in values:
            target.append(self._shrunk(value) if type(value) is dict else value)

    def _shrunk(self, value: dict[Any, Any]) -> object:
        assert self.shrink is not None
        shrunk = self.shrink(value)
        if shrunk is not value:
            self.objects -= 1
            self.memo.pop(self.number_of.pop(id(value), -1), None)
            value.clear()
        return shrunk

    def remember(self, number: int) -> None:
        """Keep the last value under a number."""
        if len(self.memo) > MOST_OBJECTS:
            raise Damaged(f"it uses more than {MOST_OBJECTS:,} values again")
        value = self.stack[-1]
        self.memo[number] = value
        self.remembered += 1
        if type(value) is dict:
            self.number_of[id(value)] = number


Step = Callable[[_Machine], object]
STOP, BINGET, LONG_BINGET = (ord(code) for code in ".hj")  # `_Machine.run` does these itself
# What each opcode of plain data does, by its name in `pickletools`.
KNOWN: dict[str, Step] = {
    "PROTO": lambda machine: machine.take(1),
    "FRAME": lambda machine: machine.take(8),
    "MARK": _Machine.mark,
    "NONE": lambda machine: machine.push(None),
    "NEWTRUE": lambda machine: machine.push(True),
    "NEWFALSE": lambda machine: machine.push(False),
    "BININT": lambda machine: machine.whole(4),
    "BININT1": lambda machine: machine.push(machine.number(1)),
    "BININT2": lambda machine: machine.push(machine.number(2)),
    "LONG1": lambda machine: machine.whole(machine.number(1)),
    "BINFLOAT": lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    "SHORT_BINUNICODE": lambda machine: machine.text(machine.number(1)),
    "BINUNICODE": lambda machine: machine.text(machine.number(4)),
    "EMPTY_TUPLE": lambda machine: machine.push(()),
    "EMPTY_LIST": lambda machine: machine.made([]),
    "EMPTY_DICT": lambda machine: machine.made({}),
    "TUPLE": lambda machine: machine.made(tuple(machine.group())),
    "TUPLE1": lambda machine: machine.tupled(1),
    "TUPLE2": lambda machine: machine.tupled(2),
    "TUPLE3": lambda machine: machine.tupled(3),
    "APPEND": lambda machine: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine: machine.append(machine.group()),
    "SETITEM": lambda machine: machine.set_items([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine: machine.set_items(machine.group()),
    "BINPUT": lambda machine: machine.remember(machine.number(1)),
    "LONG_BINPUT": lambda machine: machine.remember(machine.number(4)),
    "MEMOIZE": lambda machine: machine.remember(machine.remembered),
}
STEPS: list[Step | None] = [KNOWN.get(NAMES.get(code, "")) for code in range(256)]
