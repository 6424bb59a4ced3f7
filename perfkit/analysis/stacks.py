"""Which function do recorded call stacks name?

A stack holds frames from the innermost function to the entry point of its thread. Not every frame
says what a program does. A frame is *named* if its function has a name and its module is no library
of the operating system, of the C runtime or of the driver. It is *telling* if it is moreover no
part of the CUDA runtime or of a standard library, and no machinery of the Python interpreter. An
entry point, such as main, tells something only where it is the innermost telling frame: all work
lies below it.

The function that stacks name is the innermost one that holds nearly all (NEARLY_ALL) of the weight
of the commonest function: what calls it everywhere says less, what it calls now and then explains
less.
"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Bool, Float, Int
from perfkit.tables import FRAMES

NEARLY_ALL = 0.95  # convention
THREAD = ["rank", "process", "thread"]
SYSTEM_MODULE = re.compile(
    r"lib(?:c|pthread|m|dl|stdc\+\+|gcc|gcc_s|cuda|dxcore)(?:-[\d.]+)?\.so|ld-|libnvidia|libcupti"
    r"|libTools"
    r"|(?:ntdll|kernel32|kernelbase|ucrtbase|msvcp\w*|vcruntime\w*|nvcuda)\.dll|\[",
    re.IGNORECASE,
)
CUDA_MODULE = re.compile(r"libcudart|cudart64", re.IGNORECASE)
CUDA_FUNCTION = re.compile(r"__cudart\d|libcudart_static|(?:cuda|cu)[A-Z]\w+$")
PYTHON_MODULE = re.compile(r"(?:lib)?python\d|.*\.cpython-\d")
# Functions of the interpreter that say what the program does: take the next item, collect garbage,
# import, wait.
PYTHON_WORK = re.compile(
    r"(?:enum|zip|map|filter|gen)_(?:iter)?next$|gc_collect\w*$|collect_generations$"
    r"|PyImport_Import\w*$|lock_PyThread_acquire_lock$"
)
# Of C++ and Rust, inlined into a program
STANDARD_LIBRARY = re.compile(r"(?:std|__gnu_cxx|__cxxabiv1|core|alloc)::")
ENTRY = re.compile(
    r"(?:.*::)?_?main$|_start$|__libc_start_\w+$|start_thread$|clone3?$|_dl_\w+$|lang_start\w*$"
)
RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
SHARED_LIBRARY = re.compile(r".*\.(?:so|dll|dylib)\b", re.IGNORECASE)
# A function of Python in a trace of PyTorch: "file.py(line): function", and what is built in.
PYTHON_LINE = re.compile(r"\.py\(\d+\): ")
ABSOLUTE_FOLDER = re.compile(r"^(?:/|[A-Za-z]:\\).*[/\\](?=[^/\\]+\.py\(\d+\): )")
# The file of a notebook's cell, as the kernel of IPython or its terminal calls it.
CELL_FILE = re.compile(
    r"^(?:.*[/\\])?(?:ipykernel_\d+[/\\]\d+\.py|<ipython-input-\d+-\w+>)(?=\(\d+\): )"
)
OBJECT_ADDRESS = re.compile(r" of .{1,80} at 0x[0-9a-fA-F]+(?=>$)")

# Functions of C's and C++'s libraries that write text to a terminal or a file.
PRINTING = re.compile(
    r"_*(?:libc_|GI_+)*(?:write(?:v|64)?$|v?[fd]?printf|fwrite|f?puts$|putc|fputc|fflush|IO_)"
    r"|std::(?:__1::)?(?:(?:basic_)?(?:ostream|streambuf|filebuf)|num_put|__ostream_insert|endl)\b"
)


class Named(NamedTuple):
    """The function that the stacks of a group name."""

    function: Int  # code of FRAMES.function; -1 where no stack names one
    weight: Int  # of the stacks that hold it


def shown(function: str) -> str:
    """Return a function's name without Rust's hash, and without parameters and return type of C++.

    A function of Python keeps its file and line, without the folders of an absolute path. One that
    is built in loses the address of its object. The file of a notebook's cell is called cell.

    >>> shown("void io::write<std::vector<int> >(std::vector<int>&, int) const")
    'io::write<std::vector<int> >'
    >>> shown("rand::random_range::h292993c8bd851aaa")
    'rand::random_range'
    >>> shown("/tmp/ov/cov463.py(12): call"), shown("torch/nn/modules/module.py(1501): _call_impl")
    ('cov463.py(12): call', 'torch/nn/modules/module.py(1501): _call_impl')
    >>> shown("<built-in method randn of type object at 0x7ba0d98e4b40>")
    '<built-in method randn>'
    >>> shown("/tmp/ipykernel_71/3263.py(4): step")
    'cell(4): step'
    """
    if CELL_FILE.search(function):
        return CELL_FILE.sub("cell", function)
    if PYTHON_LINE.search(function):
        return ABSOLUTE_FOLDER.sub("", function)
    name = OBJECT_ADDRESS.sub("", RUST_HASH.sub("", function))
    if "operator" in name or name.startswith("("):
        return name
    nested, begin = 0, 0
    for place, letter in enumerate(name):
        nested += (letter == "<") - (letter == ">")
        if nested:
            continue
        if letter == "(" and not name.startswith("(anonymous namespace)", place):
            return name[begin:place] or name
        if letter == " " and not name.startswith(
            "(anonymous namespace)", place - len("(anonymous")
        ):
            begin = place + 1
    return name


def named(frames: pd.DataFrame) -> Bool:
    """Tell which FRAMES have a function's name and lie in no library of the system, the C runtime or the driver."""
    has_name = _holds(
        frames["function"], lambda name: bool(name) and not name.startswith(("[", "0x"))
    )
    in_system = _holds(frames["module"], lambda path: SYSTEM_MODULE.match(_file(path)) is not None)
    return frames["resolved"].to_numpy(bool) & has_name & ~in_system


def telling(frames: pd.DataFrame) -> Bool:
    """Tell which FRAMES say what the program does.

    They are named, and none of CUDA's own, of a standard library, or of the interpreter's
    machinery.
    """
    of_cuda = _holds(frames["module"], lambda path: CUDA_MODULE.match(_file(path)) is not None)
    of_cuda |= _holds(frames["function"], lambda name: CUDA_FUNCTION.match(name) is not None)
    standard = _holds(
        frames["function"], lambda name: STANDARD_LIBRARY.match(shown(name)) is not None
    )
    of_python = _holds(frames["module"], lambda path: PYTHON_MODULE.match(_file(path)) is not None)
    works = _holds(frames["function"], lambda name: PYTHON_WORK.match(name) is not None)
    return named(frames) & ~of_cuda & ~standard & (~of_python | works)


def _file(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _holds(column: pd.Series, fulfils: object) -> Bool:
    """Return which rows of a category column fulfil a condition; a missing one does not."""
    answers = [bool(fulfils(str(name))) for name in column.cat.categories]  # type: ignore[operator]
    return np.array([*answers, False])[column.cat.codes.to_numpy()]


class Frames:
    """FRAMES prepared for questions about many stacks."""

    def __init__(self, frames: pd.DataFrame) -> None:
        self.functions = FRAMES.check(frames)["function"].cat.categories
        kept = np.flatnonzero(telling(frames))
        self.function = frames["function"].cat.codes.to_numpy()[kept].astype(np.int64)
        self._depth = frames["depth"].to_numpy()[kept].astype(np.int64)
        self._module = frames["module"].cat.codes.to_numpy()[kept].astype(np.int64)
        self._is_library = np.array(
            [
                *(
                    SHARED_LIBRARY.match(_file(str(path))) is not None
                    for path in frames["module"].cat.categories
                ),
                False,
            ]
        )
        entry = [
            ENTRY.match(RUST_HASH.sub("", shown(str(name)))) is not None for name in self.functions
        ]
        self._is_entry = np.array([*entry, False])
        self._key = stack_key(frames["rank"].to_numpy()[kept], frames["stack"].to_numpy()[kept])

    def of(self, key: Int) -> tuple[Int, Int]:
        """Return the stack's place in `key` and the row of each telling frame of stacks, innermost first."""
        first = np.searchsorted(self._key, key, side="left")
        count = np.searchsorted(self._key, key, side="right") - first
        place = np.repeat(np.arange(len(key)), count)
        row = np.arange(len(place)) - np.repeat(np.cumsum(count) - count - first, count)
        return place, row

    def named_by(self, group: Int, key: Int, weight: Int, groups: int) -> Named:
        """Return the function that the stacks of each group 0 .. groups-1 name.

        `key` is the stack (`stack_key`) of each of some samples or calls, `weight` what it counts.
        """
        group, key, weight = _summed(group, key, weight)
        place, row = self.of(key)
        function = self.function[row]
        innermost = np.append(True, place[1:] != place[:-1])[: len(place)]
        counts = innermost | ~self._is_entry[function]
        place, function, depth = place[counts], function[counts], self._depth[row][counts]
        # A function that calls itself counts once
        once = _first_of(place * (len(self.functions) + 1) + function)
        place, function, depth = place[once], function[once], depth[once]
        cell = group[place] * (len(self.functions) + 1) + function
        cells, of_cell = np.unique(cell, return_inverse=True)
        of_cell = of_cell.reshape(-1)
        total = np.zeros(len(cells), np.int64)
        deep = np.zeros(len(cells))
        np.add.at(total, of_cell, weight[place])
        np.add.at(deep, of_cell, (weight[place] * depth).astype(float))
        return self._chosen(cells, total, deep / np.maximum(total, 1), groups)

    def _chosen(self, cells: Int, total: Int, depth: Float, groups: int) -> Named:
        """Return, per group, the innermost of the functions that hold nearly all of the commonest one's weight."""
        group, function = np.divmod(cells, len(self.functions) + 1)
        most = np.zeros(groups, np.int64)
        np.maximum.at(most, group, total)
        near = np.flatnonzero((total >= NEARLY_ALL * most[group]) & (total > 0))
        order = near[np.lexsort([-total[near], depth[near], group[near]])]
        best = order[_first_of(group[order])]
        found = Named(np.full(groups, -1, np.int64), np.zeros(groups, np.int64))
        found.function[group[best]] = function[best]
        found.weight[group[best]] = total[best]
        return found

    def holds(self, key: Int, function: Int) -> Bool:
        """Tell which stacks hold the function of this code among their telling frames."""
        place, row = self.of(key)
        found = np.zeros(len(key), bool)
        found[place[self.function[row] == function[place]]] = True
        return found

    def callers(self, key: Int) -> Int:
        """Return the code of the function of the program that asked for the innermost call of each stack, else -1.

        In the innermost file with a telling frame: of a library the outermost function in a row,
        through which the program entered it, and of the program itself the innermost one.
        """
        place, row = self.of(key)
        caller = np.full(len(key), -1, np.int64)
        if not len(place):
            return caller
        module, first = self._module[row], np.append(True, place[1:] != place[:-1])
        begins = first | np.append(True, module[1:] != module[:-1])
        run = np.cumsum(begins) - 1
        head = np.flatnonzero(begins)
        tail = np.append(head[1:], len(row)) - 1
        of_stack = run[np.flatnonzero(first)]
        in_library = self._is_library[module[head[of_stack]]]
        at = np.where(in_library, tail[of_stack], head[of_stack])
        caller[place[head[of_stack]]] = self.function[row[at]]
        return caller


def stack_key(rank: NDArray[np.integer], stack: NDArray[np.integer]) -> Int:
    """Return one integer per stack that sorts like (rank, stack); -1 where there is no stack."""
    return np.where(stack >= 0, (rank.astype(np.int64) << 40) + stack, np.int64(-1))


def heaviest(group: Int, value: Int, weight: Int, groups: int) -> Int:
    """Return the value with the largest sum of weights in each group 0 .. groups-1; -1 where there is none."""
    there = value >= 0
    group, value, weight = _summed(group[there], value[there], weight[there])
    order = np.lexsort([value, -weight, group])
    best = order[_first_of(group[order])]
    found = np.full(groups, -1, np.int64)
    found[group[best]] = value[best]
    return found


def _summed(group: Int, value: Int, weight: Int) -> tuple[Int, Int, Int]:
    """Return each pair of group and value once, with the sum of its weights."""
    if not len(group):
        return group, value, weight
    order = np.lexsort([value, group])
    group, value, weight = group[order], value[order], weight[order]
    new = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (value[1:] != value[:-1])))
    return group[new], value[new], np.add.reduceat(weight, new)


def _first_of(key: Int) -> Int:
    """Return the first row of each value, in the order of rows."""
    _, first = np.unique(key, return_index=True)
    return np.sort(first)


def strip(stacks: pd.DataFrame, frames: pd.DataFrame) -> pd.DataFrame:
    """Return when each CPU thread ran in which function, by the innermost telling frame of its samples.

    `stacks`: rows of STACKS. Columns rank, process, thread, start_ns, dur_ns, name: one row per
    stretch of equal functions. A sample counts until the next one of its thread, for at most two
    usual distances: what is longer apart was not running. Samples without a telling frame are left
    out.
    """
    samples = stacks[stacks["kind"].eq("sample")]
    samples = samples.sort_values([*THREAD, "start_ns"], kind="stable", ignore_index=True)
    known = Frames(frames)
    key = stack_key(samples["rank"].to_numpy(), samples["stack"].to_numpy())
    place, row = known.of(key)
    innermost = np.append(True, place[1:] != place[:-1])[: len(place)]
    function = np.full(len(samples), -1)
    function[place[innermost]] = known.function[row[innermost]]
    start = samples["start_ns"].to_numpy()
    is_new = samples[THREAD].ne(samples[THREAD].shift()).any(axis=1).to_numpy()
    apart = np.diff(start, append=0)
    is_last = np.append(is_new[1:], True)[: len(start)]
    usual = int(np.median(apart[~is_last])) if (~is_last).any() else 1
    end = start + np.where(is_last, usual, np.minimum(apart, 2 * usual))
    begins = is_new | (function != np.roll(function, 1)) | (start != np.roll(end, 1))
    stretches = samples[[*THREAD, "start_ns"]].assign(end=end, function=function)
    ways = dict.fromkeys([*THREAD, "start_ns", "function"], "first") | {"end": "last"}
    found = stretches.groupby(np.cumsum(begins), sort=False).agg(ways)
    found = found[found["function"] >= 0].reset_index(drop=True)
    names = [shown(str(known.functions[code])) for code in found["function"]]
    lasting = found["end"] - found["start_ns"]
    return found[[*THREAD, "start_ns"]].assign(dur_ns=lasting, name=np.array(names, object))


def functions(stacks: pd.DataFrame, frames: pd.DataFrame) -> pd.DataFrame:
    """Return how many of some samples each function holds, as a person reads a profile.

    `stacks`: rows of STACKS. One row per named function, by falling `inclusive`: function,
    innermost_count (samples whose innermost named frame it is), inclusive_count (samples with it
    anywhere among their frames with a name).
    """
    holders = frames[frames["resolved"] & frames["function"].notna()]
    rows = stacks.reset_index(drop=True).reset_index(names="sample")[["sample", "rank", "stack"]]
    every = rows.merge(holders[["rank", "stack", "depth", "function"]], on=["rank", "stack"])
    inner = rows.merge(
        frames.loc[named(frames), ["rank", "stack", "depth", "function"]], on=["rank", "stack"]
    )
    inner = inner.sort_values(["sample", "depth"]).drop_duplicates("sample")
    once = every.drop_duplicates(["sample", "function"])
    table = pd.DataFrame(
        {
            "innermost_count": inner["function"].value_counts(),
            "inclusive_count": once["function"].value_counts(),
        }
    )
    table = table.fillna(0).astype("int64").rename_axis("function").reset_index()
    table = table[table["inclusive_count"] > 0]
    return table.sort_values(
        ["inclusive_count", "innermost_count", "function"],
        ascending=[False, False, True],
        ignore_index=True,
    )


def printing(stacks: pd.DataFrame, frames: pd.DataFrame, function: str) -> float:
    """Return the share of the samples in a function (0..1) in which it prints: C's or C++'s library writes text.

    `stacks`: rows of STACKS. 0 where no sample holds the function.
    """
    keys = ["rank", "stack"]
    calls = frames[frames["function"].eq(function).to_numpy()]
    entered = calls.groupby(keys)["depth"].max().rename("entered").reset_index()
    prints = frames[_holds(frames["function"], lambda name: PRINTING.match(shown(name)))]
    innermost = prints.groupby(keys)["depth"].min().rename("printed").reset_index()
    samples = stacks[keys].merge(entered, on=keys).merge(innermost, on=keys, how="left")
    return float((samples["printed"] < samples["entered"]).mean()) if len(samples) else 0.0
