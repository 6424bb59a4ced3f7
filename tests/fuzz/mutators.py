"""Mutators: each takes a seeded random generator and content, and returns changed content with the name of the change.

A mutator never looks at the clock or at another source of chance, so a mutant is the same each time.
"""

import copy
import json
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from fuzz.nasty import NASTY_NUMBERS, NASTY_SQL, NASTY_VALUES, NASTY_WORDS, USED

Changed = tuple[str, bytes]

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
WORD = re.compile(r"[A-Za-z_][\w.:/-]*")


# Binary


def _place(rng: random.Random, data: bytes | bytearray) -> int:
    where = rng.random()
    if where < 0.2:
        return rng.randrange(min(len(data), 512))
    if where < 0.4:
        return rng.randrange(min(len(data), 4096))
    return (
        len(data) - 1 - rng.randrange(min(len(data), 1024))
        if where < 0.5
        else rng.randrange(len(data))
    )


BINARY = [
    "flip",
    "flip",
    "over",
    "over",
    "cut",
    "cut",
    "insert",
    "splice",
    "zero",
    "repeat",
    "remove",
]
BLOCKS = {"zero": (16, 512, 4096), "repeat": (16, 512, 4096), "remove": (1, 16, 512, 4096)}


def binary(rng: random.Random, data: bytes, other: bytes) -> Changed:
    """Turn bits, write nasty bytes or zeros over some, cut, put bytes between, go on with a part of another seed."""
    if not data:
        return "b_insert", rng.randbytes(20)
    kind = rng.choice(BINARY)
    if kind == "flip":
        new = bytearray(data)
        for _time in range(rng.choice((1, 1, 1, 2, 4, 8))):
            place = _place(rng, new)
            new[place] ^= 1 << rng.randrange(8)
        return "b_flip", bytes(new)
    if kind == "over":
        size = rng.choice((1, 2, 4, 8, 8, 16, 64))
        place = _place(rng, data)
        nasty = rng.choice(
            (b"\0" * size, b"\xff" * size, b"\x7f" + b"\xff" * (size - 1), rng.randbytes(size))
        )
        return "b_over", data[:place] + nasty + data[place + size :]
    if kind == "cut":
        place = (
            rng.randrange(len(data))
            if rng.random() < 0.8
            else max(0, len(data) - rng.randrange(1, 64))
        )
        return "b_cut", data[:place]
    if kind == "insert":
        place = rng.randrange(len(data) + 1)
        size = rng.choice((1, 2, 7, 100, 4096))
        nasty = rng.choice((b"\0" * size, rng.randbytes(size), b"\n" * size, b'"' * size))
        return "b_insert", data[:place] + nasty + data[place:]
    if kind == "splice":
        start = rng.randrange(len(other) + 1)
        place = rng.randrange(len(data) + 1)
        tail = data[place:] if rng.random() < 0.5 else b""
        return "b_splice", data[:place] + other[
            start : start + rng.randrange(1, len(other) + 2)
        ] + tail
    size = rng.choice(BLOCKS[kind])
    place = rng.randrange(len(data))
    if kind == "zero":  # as a disk does after a crash
        place = place // size * size
        return "b_zero", data[:place] + b"\0" * min(size, len(data) - place) + data[place + size :]
    if kind == "repeat":
        return "b_repeat", data[:place] + data[place : place + size] * rng.choice(
            (2, 3, 20)
        ) + data[place + size :]
    return "b_remove", data[:place] + data[place + size :]


# Text


def _replaced(
    rng: random.Random, text: str, pattern: re.Pattern[str], nasty: tuple[str, ...]
) -> str:
    """Replace one match near a random place, all equal ones, or all in its line."""
    start = rng.randrange(len(text) + 1)
    found = pattern.search(text, start) or pattern.search(text)
    if not found:
        return text
    new = rng.choice(nasty)
    if rng.random() < 0.1:
        return text.replace(found[0], new)
    return text[: found.start()] + new + text[found.end() :]


def number(rng: random.Random, text: str) -> str:
    for _time in range(rng.choice((1, 1, 1, 2, 3))):
        text = _replaced(rng, text, NUMBER, NASTY_NUMBERS)
    return text


def word(rng: random.Random, text: str) -> str:
    other = WORD.search(text, rng.randrange(len(text) + 1))
    return _replaced(rng, text, WORD, (*NASTY_WORDS, *((other[0],) * 8 if other else ())))


def lines(rng: random.Random, text: str) -> str:
    parts = text.split("\n")
    i, j = rng.randrange(len(parts)), rng.randrange(len(parts))
    what = rng.randrange(7)
    if what == 0:
        del parts[i : i + rng.choice((1, 1, 1, 3, 10))]
    elif what == 1:
        parts[j:j] = [parts[i]] * rng.choice((1, 1, 2, 50))
    elif what == 2:
        parts[i], parts[j] = parts[j], parts[i]
    elif what == 3:
        parts[i : i + 2] = ["".join(parts[i : i + 2])]
    elif what == 4:
        parts[i] = rng.choice(("\t", "    ", "[1,0]<stdout>:")) + parts[i]
    elif what == 5:
        parts[i] = ""
    else:
        parts[i] = parts[i][: rng.randrange(len(parts[i]) + 1)]
    return "\n".join(parts)


def column(rng: random.Random, text: str) -> str:
    parts = text.split("\n")
    between = "," if sum("," in part for part in parts[:20]) > 5 else None
    widest = max(len(part.split(between)) for part in parts[:50])
    place = rng.randrange(max(1, widest))
    picked = rng.choice(
        (
            range(len(parts)),
            range(len(parts)),
            [rng.randrange(len(parts))],
            range(min(3, len(parts))),
        )
    )
    is_drop = rng.random() < 0.7
    for i in picked:
        cells = parts[i].split(between)
        if place < len(cells):
            cells[place : place + 1] = [] if is_drop else [cells[place]] * 2
            parts[i] = (between or " ").join(cells)
    return "\n".join(parts)


def long_line(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    new = rng.choice(("x", "1", " ", ",", '"', '"\n', "a,", '",', "0 ", "[", "<a>")) * rng.choice(
        (1000, 100_000, 100_000, 300_000, 1_000_000)
    )
    return text[:place] + new + text[place:]


def quotes(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    return (
        text[:place]
        + rng.choice(('"', "'", "{", "}", ",", "[", "]", "<", ">", ";", "\\"))
        + text[place + rng.choice((0, 1)) :]
    )


TEXT: tuple[tuple[str, Callable[[random.Random, str], str]], ...] = (
    *(("t_num", number),) * 8,
    *(("t_word", word),) * 3,
    *(("t_line", lines),) * 4,
    *(("t_col", column),) * 2,
    ("t_long", long_line),
    *(("t_quote", quotes),) * 2,
)


def _encoded(rng: random.Random, text: str) -> Changed:
    """Write the text in another encoding, or with other ends of lines."""
    what = rng.randrange(7)
    if what == 0:
        return "t_utf16", text.encode("utf-16", "surrogateescape" if text.isascii() else "replace")
    if what == 1:
        return "t_latin1", (text[: len(text) // 2] + "é°µ" + text[len(text) // 2 :]).encode(
            "latin-1", "replace"
        )
    if what == 6:
        return "t_utf16le", text.encode("utf-16-le", "replace")
    if what == 5:
        place = rng.randrange(len(text) + 1)
        text = text[:place] + "\0" * rng.choice((1, 4000)) + text[place:]
    else:
        text = {2: text.replace("\n", "\r\n"), 3: text.replace("\n", "\r"), 4: f"\ufeff{text}"}[
            what
        ]
    return f"t_{('crlf', 'cr', 'bom', 'nul')[what - 2]}", text.encode("utf-8", "surrogateescape")


def text(rng: random.Random, data: bytes, _: bytes) -> Changed:
    decoded = data.decode("utf-8", "surrogateescape")
    if rng.random() < 0.06:
        return _encoded(rng, decoded)
    name, mutator = rng.choice(TEXT)
    return name, mutator(rng, decoded).encode("utf-8", "surrogateescape")


# JSON


def _places(value: Any, found: list[tuple[Any, Any]], limit: int = 4000) -> list[tuple[Any, Any]]:
    """List (container, key or index) of everything in a JSON value."""
    waiting = [value]
    while waiting and len(found) < limit:
        inner = waiting.pop()
        items = list(inner.items()) if isinstance(inner, dict) else list(enumerate(inner))
        found += [(inner, key) for key, _ in items]
        waiting += [part for _, part in items if isinstance(part, (dict, list))]
    return found


def _nested(rng: random.Random) -> bytes:
    deep = rng.choice((200, 5000, 100_000, 100_000))
    return rng.choice(
        (b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep, b"[" * deep)
    )


def _json_change(rng: random.Random, made: Any) -> str:
    """Change a JSON value in place; return the name of the change."""
    places = _places(made, [])
    if not places:
        return "j_none"
    inner, key = rng.choice(places)
    what = rng.randrange(10)
    if what <= 3:
        inner[key] = copy.deepcopy(rng.choice(NASTY_VALUES))
        return f"j_set:{key}"
    if what == 4:
        del inner[key]
        return f"j_del:{key}"
    if what in (5, 6):
        lists = [(i, k) for i, k in places if isinstance(i[k], list) and i[k]]
        if not lists:
            return "j_none"
        inner, key = rng.choice(lists)
        place = rng.randrange(len(inner[key]))
        if what == 5:
            inner[key].extend([inner[key][place]] * rng.choice((1, 1, 5)))
        else:
            del inner[key][place:][: rng.choice((1, 1, 10))]
        return f"j_copy:{key}" if what == 5 else f"j_drop:{key}"
    if isinstance(inner, list):
        inner[key] = copy.deepcopy(rng.choice(NASTY_VALUES))
        return f"j_set:{key}"
    named = [place for place in places if place[1] == key and isinstance(place[0], dict)]
    if what == 7:
        for holder, name in named:
            holder.pop(name, None)  # a copied element is there twice
        return f"j_all_del:{key}"
    new = rng.choice(NASTY_VALUES)
    share = rng.choice((1.0, 1.0, 0.3))
    for holder, name in named:
        if rng.random() < share:
            holder[name] = copy.deepcopy(new)
    return f"j_all:{key}"


def _in_halves(rng: random.Random, events: list[Any]) -> list[Any]:
    """Write events of a trace as begins and ends, some of which get lost, and some events twice."""
    written = []
    for event in events:
        what = rng.random()
        has_times = isinstance(event, dict) and {"ts", "dur"} <= event.keys()
        if what < 0.5 and has_times and isinstance(event["ts"], int | float):
            place = {key: event[key] for key in ("pid", "tid") if key in event}
            end = {**place, "ph": "E", "ts": event["ts"] + event["dur"]}
            written += [{**event, "ph": "B"}, end][rng.random() < 0.05 :]
        else:
            written += [event] * (1 + (what > 0.95))
    return written


def jsons(rng: random.Random, data: bytes, _: bytes) -> Changed:
    """Change values, keys, elements or the depth of a JSON text; a text that is none is changed as text."""
    try:
        made = json.loads(data)
    except (ValueError, RecursionError):
        return text(rng, data, b"")
    if rng.random() < 0.07:
        deep = _nested(rng)
        written = json.dumps(made).encode()
        place = written.find(b":", rng.randrange(len(written)))
        return "j_deep", written[: place + 1] + deep + (b"," if place >= 0 else b"") + written[
            place + 1 :
        ]
    if rng.random() < 0.03:
        encoding = rng.choice(("utf-8-sig", "utf-16"))
        return f"j_{encoding}", json.dumps(made).encode(encoding)
    if isinstance(made, dict) and isinstance(made.get("traceEvents"), list) and rng.random() < 0.1:
        made["traceEvents"] = _in_halves(rng, made["traceEvents"])
        return "j_halves", json.dumps(made).encode()
    changes = [_json_change(rng, made) for _time in range(rng.choice((1, 1, 2, 3)))]
    indent = rng.choice((None, None, 2))
    return "+".join(changes), json.dumps(
        made, indent=indent, ensure_ascii=rng.random() < 0.8
    ).encode("utf-8", "surrogatepass")


# SQL


def sql(rng: random.Random, path: Path, tables: tuple[str, ...]) -> str:
    """Change the rows, columns or tables of an SQLite file; return the statements that ran, shortened."""
    done: list[str] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in ("journal_mode = OFF", "synchronous = OFF"):
            database.execute(f"PRAGMA {pragma}")
        if rng.random() < 0.06:
            done.append(_renamed(rng, database))
        for _time in range(rng.choice((1, 1, 2, 3))):
            statement = _statement(rng, database, tables)
            try:
                database.execute(statement)
            except sqlite3.Error:
                continue
            done.append(statement.replace('"', "")[:80])
    return "sql " + "; ".join(done)


def _renamed(rng: random.Random, database: sqlite3.Connection) -> str:
    """Give some tables a name in lower case, or put a view in their place."""
    listed = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    to_view = rng.random() < 0.5
    for (name,) in listed:
        if rng.random() < 0.3:
            continue
        database.execute(f'ALTER TABLE "{name}" RENAME TO "stored_{name}"')
        if to_view:
            database.execute(f'CREATE VIEW "{name}" AS SELECT * FROM "stored_{name}"')
        else:
            database.execute(f'ALTER TABLE "stored_{name}" RENAME TO "{name.lower()}"')
    return "views" if to_view else "lower case"


def _statement(rng: random.Random, database: sqlite3.Connection, tables: tuple[str, ...]) -> str:
    there = {
        name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    table = rng.choice([name for name in tables if name in there] or sorted(there) or ["nothing"])
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')] or ["nothing"]
    name = _used(rng, columns)
    share = rng.choice(
        (
            "",
            "",
            " WHERE rowid % 3 = 0",
            " WHERE rowid = (SELECT min(rowid) FROM {t})",
            " WHERE rowid > 2",
        )
    )
    where = share.format(t=f'"{table}"')
    what = rng.randrange(20)
    if what == 0:
        return f'DROP TABLE "{table}"'
    if what == 1:
        return f'ALTER TABLE "{table}" DROP COLUMN "{name}"'
    if what == 2:
        return f'DELETE FROM "{table}"{where}'
    if what == 3:
        return f'INSERT INTO "{table}" SELECT * FROM "{table}" LIMIT 5'
    if what == 4 and {"start", "end"} <= set(columns):
        return f'UPDATE "{table}" SET "end" = "start" - {rng.choice((1, 1000, 10**15))}{where}'
    if what == 5:
        return f'ALTER TABLE "{table}" RENAME COLUMN "{name}" TO "{rng.choice(columns)}2"'
    if what == 6:
        return f'UPDATE "{table}" SET "{name}" = "{rng.choice(columns)}"{where}'
    return f'UPDATE "{table}" SET "{name}" = {rng.choice(NASTY_SQL).format(c=chr(34) + name + chr(34))}{where}'


def _used(rng: random.Random, names: list[str]) -> str:
    used = [name for name in names if name in USED]
    return rng.choice(used if used and rng.random() < 0.8 else names)


# Columns


def columns(rng: random.Random, table: pa.Table) -> tuple[str, pa.Table]:
    if not table.num_columns:
        return "c_none", table
    place = table.column_names.index(_used(rng, table.column_names))
    field, values = table.schema.field(place), table.column(place).combine_chunks()
    what = rng.randrange(12)
    if what == 0:
        return f"c_drop:{field.name}", table.remove_column(place)
    if what == 1:
        return f"c_name:{field.name}", table.rename_columns(
            [n + "2" if n == field.name else n for n in table.column_names]
        )
    if what == 2:
        return "c_rows", table.slice(0, rng.randrange(table.num_rows + 1))
    if what == 3:
        return "c_twice", pa.concat_tables([table, table])
    if what == 4:
        return f"c_double:{field.name}", table.append_column(field, values)
    made = _values(rng, what, values, table.num_rows)
    return f"c{what}:{field.name}={made.type}", table.set_column(place, field.name, made)


def _values(rng: random.Random, what: int, values: pa.Array, rows: int) -> pa.Array:
    old = values.to_pylist()
    if what <= 7:
        kind = rng.choice(
            (
                pa.string(),
                pa.binary(),
                pa.float64(),
                pa.float32(),
                pa.int8(),
                pa.uint64(),
                pa.bool_(),
                pa.date32(),
            )
        )
        try:
            return values.cast(kind, safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.array([None] * rows, kind)
    if what == 8:
        return pa.array([None if rng.random() < 0.5 else value for value in old], values.type)
    if what == 9:
        return rng.choice(
            (
                pa.array([None] * rows, pa.null()),
                pa.array([[1, 2]] * rows, pa.list_(pa.int64())),
                pa.array([{"a": 1}] * rows, pa.struct([("a", pa.int64())])),
                pa.array(["a", None, "é"] * rows, pa.string())[:rows].dictionary_encode(),
                pa.array([b"\xff\xfe"] * rows, pa.binary()),
                pa.array([b"\xff\xfe"] * rows, pa.binary()).cast(pa.binary()).view(pa.string())
                if rows
                else values,
                pa.array([float("nan"), float("inf"), 1e300] * rows, pa.float64())[:rows],
            )
        )
    nasty = rng.choice((-1, 0, 2**31, 2**62, 2**63 - 1, -(2**63), -5, 10**17))
    share = 1.0 if what == 10 else 0.3
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        changed = [nasty if rng.random() < share else value for value in old]
        return pa.array(
            changed,
            pa.int64()
            if pa.types.is_integer(values.type) and all(_fits(v) for v in changed)
            else pa.float64(),
        )
    return pa.array(
        [rng.choice(NASTY_WORDS) if rng.random() < share else str(value) for value in old],
        pa.string(),
    )


def _fits(value: int | None) -> bool:
    return value is None or -(2**63) <= value < 2**63
