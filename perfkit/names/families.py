"""The family of a kernel, the properties that its name states, and how it is called in tables and charts.

Names are the libraries' own and documented only in part (CUTLASS documentation, "CUTLASS Profiler": tile M x N, then K
x stages, layout, alignment; ROCm/Tensile wiki, "Kernel parameters": index letters, data types, MT = macro tile), so a
property is a hint, and empty where the name does not state it. The family is that of the first rule below that matches
``scope::function`` and, behind a space, the functor of a generic kernel; without one ``other``.

`compact` writes a name without what never tells two kernels apart: anonymous namespaces, constness, casts and suffixes
of integer arguments, the ``operator()`` of a lambda, and, for libraries, outer namespaces and parameter lists (which
differ between tools and versions). Everything else stays, so equal compact names mean equal work.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby, pairwise

from perfkit.names import parsing
from perfkit.names.parsing import split as parsing_split

LONGEST = 80
_HASHED = LONGEST - len(" #00000000")
_DEEPEST = 12  # names in real captures nest 5 deep; deeper text is kept as it stands
# Names that say nothing by themselves: the enclosing scope or the template argument is the name.
HOLLOW = frozenset(
    {
        "Kernel",
        "Kernel2",
        "kernel",
        "kernel2",
        "device_kernel",
        "split_k_kernel",
        "Kernel_traits",
        "kentry",
    }
)
# Arguments of PyTorch's generic kernels that follow from the functor: pointers, plain indexing, no conversion.
_IMPLIED = frozenset(
    {"Array", "array", "TrivialOffsetCalculator", "LoadWithoutCast", "StoreWithoutCast"}
)
_GENERIC = re.compile(
    r"elementwise_kernel|^reduce_kernel$|^multi_tensor_apply_kernel$|^distribution_elementwise"
)
# Wrapper -> position of the argument that says what is done.
_WRAPPERS = {
    "ReduceOp": 1,
    "func_wrapper_t": 1,
    "gpu_kernel_impl": 0,
    "gpu_kernel_impl_nocast": 0,
    "gpu_index_kernel": 0,
    "BinaryFunctor": -1,
    "AUnaryFunctor": -1,
    "BUnaryFunctor": -1,
}
_NUMBER = re.compile(r"(?:\([^()]*\))?(-?\d+)[uUlL]*")
_LAMBDA = re.compile(r"\{lambda\((.*)\)#(\d+)\}", re.DOTALL)
_PLACEHOLDER = re.compile(r"\bT(\d{1,3})\b")
_NO_FUNCTOR = re.compile(
    r"-?\d+|bool|u?(?:char|short|int|long|longlong)|float|double|\w*(?:[Hh]alf|float16)|\w*Metadata"
)


@dataclass(frozen=True)
class _Detail:
    """What is written: the namespaces and the parameter lists of code outside the known libraries."""

    scopes: bool = True
    params: bool = True


FAMILIES = (
    *(
        "gemm",
        "convolution",
        "attention",
        "normalisation",
        "softmax",
        "elementwise",
        "reduction",
        "embedding",
    ),
    *("optimizer", "communication", "copy", "other"),
)
_REACH = 400
# The criterion of HTA and TraceLens, on the function name without scopes.
_NCCL = re.compile(r"nccl|rccl", re.IGNORECASE)
_LONGEST_NAME = 2000
Rules = tuple[tuple[str, re.Pattern[str]], ...]


def compiled_rules(name: str, flags: int = 0) -> Rules:
    """Return a list of rules.toml as (value, pattern) pairs, tried in their order, with the patterns compiled."""
    return tuple((value, re.compile(pattern, flags)) for value, pattern in parsing.RULES[name])


_FAMILY_RULES = compiled_rules("families", re.IGNORECASE)
_GENERATIONS = compiled_rules("generations")
_NAMED_GENERATION = re.compile(
    r"(?:^|[_<:\s])(kepler|maxwell|pascal|volta|turing|ampere|hopper|blackwell)_", re.IGNORECASE
)
_CAPABILITY = re.compile(r"(?:sm_?|cutlass_)(\d{2,3})(?!\d)", re.IGNORECASE)
_TILE = tuple(
    re.compile(pattern)
    for pattern in (
        r"tilesize(\d+)x(\d+)x(\d+)",
        r"_MT(\d+)x(\d+)x(\d+)_",
        r"_bt(\d+)x(\d+)x(\d+)_",
        r"_t(\d+)x(\d+)x(\d+)",
        r"Cta_tile<[\w:]*, ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+)",
        r"_(\d+)x(\d+)x(\d+)x\d+(?=_|$)",
        r"_(\d+)x(\d+)_\w*stages_(\d+)x\d+",
        r"_(\d+)x(\d+)_(\d+)x\d+(?=_)",
        r"_(\d+)x(\d+)(?=_|$)",
    )
)
_FLASH_TILE = re.compile(
    r"Flash_\w+_traits<(?:\(int\))?\d+, ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+)"
)
_TENSOR_LAYOUT = re.compile(r"_(nhwckrsc_n(?:hwc|chw)|nhwc|nchw)(?=[_>]|$)")
_OPERAND_LAYOUT = re.compile(r"_(nn|nt|tn|tt|NN|NT|TN|TT)(?=[_>]|$)|^nvjet_\w+_([NT]{2})[NT]$")
# In Tensile's C_ijk = A_? * B_? the summation index l comes first where the operand is transposed (A) or not (B).
_TENSILE_LAYOUT = {"Ailk_Bljk": "nn", "Ailk_Bjlk": "nt", "Alik_Bljk": "tn", "Alik_Bjlk": "tt"}
_TENSILE = re.compile(r"^Cijk_(\w{4}_\w{4})_")
_SLICED = re.compile(r"sliced(\d{1,3})x(\d{1,3})")
_SPLIT = compiled_rules("splits")
_DIRECTION = compiled_rules("directions")
_COLLECTIVE = re.compile(r"^[nr]ccl(?:Dev)?Kernel_(?!Generic)([A-Z][A-Za-z]+)")
_FUNCTOR = re.compile(r"^(?!cutlass_|cublas)([\w:]+)")
_FUSED = re.compile(r"^triton_[a-z]+_fused_(\w+)")


@dataclass(frozen=True)
class Decoded:
    """What a kernel's name says; the empty string (None for `tensor_cores`) where it says nothing.

    ``architecture`` is what the library made it for, not necessarily what it ran on. ``precision`` is the operands'
    type; ``tensor_cores`` counts AMD's matrix cores too. ``tile`` is M x N or M x N x K per thread block. ``layout`` is
    nn, nt, tn, tt (op of A and B, column-major) or a tensor layout. ``split`` tells slice-K within a block from split-K
    across blocks. ``operation`` is a collective, fprop/dgrad/wgrad, fwd/bwd, fused operators or a functor.
    """

    name: str
    family: str
    library: str
    architecture: str
    precision: str
    tensor_cores: bool | None
    tile: str
    layout: str
    split: str
    operation: str
    sentence: str = ""


def architecture(full_name: str) -> str:
    """Return the GPU generation a kernel was built for, which need not be the one it ran on."""
    text = beginning(full_name)
    if named := _NAMED_GENERATION.search(text):
        return named.group(1).lower()
    if capability := _CAPABILITY.search(text):
        number = capability.group(1)
        return next((name for name, pattern in _GENERATIONS if pattern.fullmatch(number)), "")
    target = re.search(r"_ISA(\d\w\w)_", text)
    return f"gfx{target.group(1).lower()}" if target else ""


def tile(full_name: str, family: str) -> str:
    """Return the part of the result one thread block computes: MxN, or MxNxK where the name says K."""
    text = beginning(full_name)
    patterns = {"attention": (_FLASH_TILE,), "gemm": _TILE, "convolution": _TILE}.get(family, ())
    match = next((match for pattern in patterns if (match := pattern.search(text))), None)
    return "x".join(match.groups()) if match else ""


def layout(full_name: str, family: str) -> str:
    """Return nn, nt, tn or tt (op of A, op of B, column-major) of a GEMM, or the tensor layout of a convolution."""
    text = beginning(full_name)
    if tensile := _TENSILE.search(text):
        return _TENSILE_LAYOUT.get(tensile.group(1), "")
    patterns = {"gemm": (_OPERAND_LAYOUT,), "convolution": (_TENSOR_LAYOUT, _OPERAND_LAYOUT)}.get(
        family, ()
    )
    match = next((match for pattern in patterns if (match := pattern.search(text))), None)
    return next(filter(None, match.groups())).lower() if match else ""


def split(full_name: str) -> str:
    """Return how the K loop is divided: within the block (slice-K) or across blocks (split-K)."""
    text = beginning(full_name)
    if sliced := _SLICED.search(text):
        return f"slice-K {int(sliced.group(1)) * int(sliced.group(2))} within the block"
    return first_match(_SPLIT, text)


def operation(full_name: str) -> str:
    """Return the collective, the direction of a convolution or pass, the fused operators, or the functor."""
    name, does = parsing.base(full_name), functor(full_name)
    sources: tuple[Callable[[], str], ...] = (
        lambda: _group(_COLLECTIVE, name),
        lambda: _group(_FUSED, name).rstrip("0123456789").strip("_"),
        lambda: first_match(_DIRECTION, f"{name} {does}" if "elementwise" not in name else ""),
        lambda: _group(_FUNCTOR, does),
    )
    return next((value for source in sources if (value := source())), "")


def beginning(full_name: str) -> str:
    """Return as much of the name as states properties: its beginning, which holds the outer arguments."""
    return parsing.canonical(full_name[:_LONGEST_NAME])


def first_match(ordered: Rules, text: str) -> str:
    """Return the value of the first pattern found in `text`, or the empty string."""
    return next((value for value, pattern in ordered if pattern.search(text)), "")


def _group(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


def family(full_name: str) -> str:
    """Return the kind of work a kernel does, one of FAMILIES; ``other`` when its demangled name does not say.

    A communication kernel has ``nccl`` or ``rccl`` in its function name, or is a known custom collective. Layout
    changes, concatenations and indexed moves are ``copy``; pooling and scans are ``reduction``; filling and random
    numbers are ``elementwise``.

    >>> family("ampere_sgemm_32x32_sliced1x4_tn"), family("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    ('gemm', 'communication')
    """
    if _NCCL.search(parsing.base(full_name)):
        return "communication"
    name = "::".join(part.name for part in parsing.qualified(full_name))[:_REACH]
    text = f"{name} {functor(full_name)[:_REACH]}".rstrip()
    return next((kind for kind, pattern in _FAMILY_RULES if pattern.search(text)), "other")


def short(full_name: str) -> str:
    """Return a name of at most 80 characters that never stands for two kernels that do different work.

    A plain name comes back unchanged; a CUTLASS ``Kernel`` is called by its operation; a name that would be longer is
    shortened and ends in `` #`` and 8 hexadecimal digits, a hash of the long one. It is the same in every process and,
    for library kernels, from every profiler.

    >>> short("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align1>(T1::Params)")
    'cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align1'
    """
    name = compact(full_name)
    if len(name) <= LONGEST:
        return name
    mark = " #" + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    forms = [_written_out(full_name, _Detail(scoped, params=False)) for scoped in (True, False)]
    if does := functor(full_name):
        *scopes, last = parsing.qualified(full_name)
        called = f"{scopes[-1].name}::{last.name}" if scopes and last.name in HOLLOW else last.name
        forms.insert(len(forms) if last.args else 0, f"{called}[{does}]")
    return (
        next((form for form in forms if len(form) <= _HASHED), forms[-1][: _HASHED - 1] + "…")
        + mark
    )


def compact(full_name: str) -> str:
    """Return the kernel's name without the parts that never tell two kernels apart."""
    last = parsing.qualified(full_name)[-1]
    tail = "" if last.args or last.params is not None else last.tail  # arguments of a mangled name
    return _written_out(full_name, _Detail()) + tail


def functor(full_name: str) -> str:
    """Return the template argument that says what a generic kernel does, or the empty string."""
    last = parsing.qualified(full_name)[-1]
    if last.name not in HOLLOW and not _GENERIC.search(last.name):
        return ""
    if not last.args:
        return next((name for name in parsing.template_names(last.tail) if name not in HOLLOW), "")
    # The first template argument that is not a number, an element type or bookkeeping.
    plain = (
        (_argument(arg, _Detail(), _DEEPEST).partition("<")[0].rpartition("::")[2], arg)
        for arg in last.args
    )
    argument = next((arg for name, arg in plain if not _NO_FUNCTOR.fullmatch(name)), "")
    for _ in range(_DEEPEST):
        wrapper = next((part for part in parsing.path(argument) if part.name in _WRAPPERS), None)
        if wrapper is None or len(wrapper.args) <= _WRAPPERS[wrapper.name]:
            break
        argument = wrapper.args[_WRAPPERS[wrapper.name]]
    return _rendered(parsing.path(argument), _Detail(), library=False, depth=1) if argument else ""


def _written_out(full_name: str, detail: _Detail) -> str:
    """Write a kernel's name; CUTLASS's ``Kernel<operation>`` as its operation."""
    parts = parsing.qualified(full_name)
    last = parts[-1]
    if (
        last.name in HOLLOW
        and len(last.args) == 1
        and last.args[0].startswith("cutlass_")
        and "<" not in last.args[0]
    ):
        return last.args[0]
    library = parsing.library_of(full_name)
    if library == "PyTorch" and _GENERIC.search(last.name):
        parts = (
            *parts[:-1],
            replace(
                last,
                args=tuple(arg for arg in last.args if parsing.path(arg)[-1].name not in _IMPLIED),
            ),
        )
    return _rendered(parts, detail, bool(library), depth=0)


def _rendered(parts: tuple[parsing.Part, ...], detail: _Detail, library: bool, depth: int) -> str:
    """Write the parts of a name; of a library without filler namespaces and parameter lists."""
    library = library or parsing.is_library(parts[0].name)
    if library:
        detail = replace(detail, params=False)
    steps: list[str] = []
    # How many namespaces at the start are left out: a library's fillers, or all.
    count = 0
    for scope, following in pairwise(parts):
        plain = (
            not scope.args and scope.params is None and not following.name.startswith("{lambda(")
        )
        if not plain or (detail.scopes and not (library and parsing.is_filler(scope.name))):
            break
        count += 1
    for part in parts[count:]:
        if found := _LAMBDA.match(part.name):
            # A lambda is appended to the function it stands in: f#1, then f#1.7 and f#1.7.1(float).
            (params, number), around = found.groups(), steps[-1] if steps else ""
            function = around.rstrip(
                "0123456789."
            )  # searching the number takes quadratic time on nested lambdas
            joint = "." if function != around and function.endswith("#") else "#"
            given = f"({_listed(params, detail, depth)})" if params else ""
            steps[-1:] = [f"{around}{joint}{number}{given}{part.tail}"]
        elif part.name != "operator()" or part.args or not steps:
            steps.append(_part(part, detail, depth))
    return "::".join(steps)


def _part(part: parsing.Part, detail: _Detail, depth: int) -> str:
    args = [_argument(arg, detail, depth + 1) for arg in part.args]
    text = part.name + (f"<{', '.join(args)}>" if args else "")
    if part.params is None:
        return text + (part.tail if args else "")
    if not detail.params:
        return text
    # nsys abbreviates template arguments as T1, T2, ...; a long one stays abbreviated.
    short = {number: arg for number, arg in enumerate(args, 1) if len(arg) <= 40}
    given = _PLACEHOLDER.sub(lambda found: short.get(int(found[1]), found[0]), part.params)
    return f"{text}({_listed(given, detail, depth)})"


def _argument(text: str, detail: _Detail, depth: int) -> str:
    text = text.strip()
    if number := _NUMBER.fullmatch(text):
        return number.group(1)
    if text in ("true", "false"):
        return str(int(text == "true"))
    return (
        text
        if depth > _DEEPEST
        else _rendered(parsing.path(text), detail, library=False, depth=depth)
    )


def _listed(params: str, detail: _Detail, depth: int) -> str:
    """Write a parameter list; three and more equal types in a row become ``float* x3``."""
    written = [_argument(param, detail, depth + 1) for param in parsing_split(params, ",")]
    runs = [(text, len(list(run))) for text, run in groupby(written)]
    return ", ".join(f"{text} x{n}" if n > 2 else ", ".join([text] * n) for text, n in runs)
