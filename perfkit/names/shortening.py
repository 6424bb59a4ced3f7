"""How a kernel is called in tables and charts.

`compact` writes a name without what never tells two kernels apart: anonymous namespaces, constness, casts and suffixes
of integer arguments, the ``operator()`` of a lambda, and, for the libraries of `perfkit.names.parsing`, outer
namespaces and parameter lists (their kernels are not overloaded on parameters, and the lists differ between tools and
versions). Everything else stays, so equal compact names mean equal work. `short` keeps a compact name of up to 80
characters; a longer one loses detail and gains a hash of the whole compact name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby, pairwise

from perfkit.names.parsing import Part, is_filler, is_library, library_of, path, qualified, split, template_names

LONGEST = 80
_HASHED = LONGEST - len(" #00000000")
_DEEPEST = 12  # names in real captures nest 5 deep; deeper text is kept as it stands

# Names that say nothing by themselves: the enclosing scope or the template argument is the name.
HOLLOW = frozenset(
    {"Kernel", "Kernel2", "kernel", "kernel2", "device_kernel", "split_k_kernel", "Kernel_traits", "kentry"}
)
# Arguments of PyTorch's generic kernels that follow from the functor: pointers, plain indexing, no conversion.
_IMPLIED = frozenset({"Array", "array", "TrivialOffsetCalculator", "LoadWithoutCast", "StoreWithoutCast"})
_GENERIC = re.compile(r"elementwise_kernel|^reduce_kernel$|^multi_tensor_apply_kernel$|^distribution_elementwise")
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


def short(full_name: str) -> str:
    """Return a name of at most 80 characters that never stands for two kernels that do different work.

    A plain name comes back unchanged; a CUTLASS ``Kernel`` is called by its operation; a name that would be longer is
    shortened and ends in `` #`` and 8 hexadecimal digits, a hash of the long one. It is the same in every process and,
    for library kernels, from every profiler.

    Examples
    --------
    >>> short("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align1>(T1::Params)")
    'cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align1'
    """
    name = compact(full_name)
    if len(name) <= LONGEST:
        return name
    mark = " #" + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    forms = [_written_out(full_name, _Detail(scoped, params=False)) for scoped in (True, False)]
    if does := functor(full_name):
        *scopes, last = qualified(full_name)
        called = f"{scopes[-1].name}::{last.name}" if scopes and last.name in HOLLOW else last.name
        forms.insert(len(forms) if last.args else 0, f"{called}[{does}]")
    return next((form for form in forms if len(form) <= _HASHED), forms[-1][: _HASHED - 1] + "…") + mark


def compact(full_name: str) -> str:
    """Return the kernel's name without the parts that never tell two kernels apart."""
    last = qualified(full_name)[-1]
    tail = "" if last.args or last.params is not None else last.tail  # arguments of a mangled name
    return _written_out(full_name, _Detail()) + tail


def functor(full_name: str) -> str:
    """Return the template argument that says what a generic kernel does, or the empty string."""
    last = qualified(full_name)[-1]
    if last.name not in HOLLOW and not _GENERIC.search(last.name):
        return ""
    if not last.args:
        return next((name for name in template_names(last.tail) if name not in HOLLOW), "")
    argument = next((arg for arg in last.args if not _says_nothing(arg)), "")
    for _ in range(_DEEPEST):
        wrapper = next((part for part in path(argument) if part.name in _WRAPPERS), None)
        if wrapper is None or len(wrapper.args) <= _WRAPPERS[wrapper.name]:
            break
        argument = wrapper.args[_WRAPPERS[wrapper.name]]
    return _rendered(path(argument), _Detail(), library=False, depth=1) if argument else ""


def _says_nothing(argument: str) -> bool:
    """Whether a template argument is a number, an element type or bookkeeping."""
    name = _argument(argument, _Detail(), _DEEPEST).partition("<")[0].rpartition("::")[2]
    return _NO_FUNCTOR.fullmatch(name) is not None


def _written_out(full_name: str, detail: _Detail) -> str:
    """Write a kernel's name; CUTLASS's ``Kernel<operation>`` as its operation."""
    parts = qualified(full_name)
    last = parts[-1]
    if last.name in HOLLOW and len(last.args) == 1 and last.args[0].startswith("cutlass_") and "<" not in last.args[0]:
        return last.args[0]
    library = library_of(full_name)
    if library == "PyTorch" and _GENERIC.search(last.name):
        kept = tuple(arg for arg in last.args if path(arg)[-1].name not in _IMPLIED)
        parts = (*parts[:-1], replace(last, args=kept))
    return _rendered(parts, detail, bool(library), depth=0)


def _rendered(parts: tuple[Part, ...], detail: _Detail, library: bool, depth: int) -> str:
    """Write the parts of a name; of a library without filler namespaces and parameter lists."""
    library = library or is_library(parts[0].name)
    if library:
        detail = replace(detail, params=False)
    steps: list[str] = []
    for part in parts[_leading_scopes(parts, library, detail) :]:
        if found := _LAMBDA.match(part.name):
            steps[-1:] = [_with_lambda(steps[-1] if steps else "", found, detail, depth) + part.tail]
        elif part.name != "operator()" or part.args or not steps:
            steps.append(_part(part, detail, depth))
    return "::".join(steps)


def _leading_scopes(parts: tuple[Part, ...], library: bool, detail: _Detail) -> int:
    """Return how many namespaces at the start are left out: a library's fillers, or all."""
    count = 0
    for scope, following in pairwise(parts):
        plain = not scope.args and scope.params is None and not following.name.startswith("{lambda(")
        if not plain or (detail.scopes and not (library and is_filler(scope.name))):
            break
        count += 1
    return count


def _with_lambda(scope: str, found: re.Match[str], detail: _Detail, depth: int) -> str:
    """Append a lambda to the function it stands in: ``f#1``, then ``f#1.7`` and ``f#1.7.1(float)``."""
    params, number = found.groups()
    function = scope.rstrip("0123456789.")  # a search for the number would take quadratic time on nested lambdas
    joint = "." if function != scope and function.endswith("#") else "#"
    return f"{scope}{joint}{number}" + (f"({_listed(params, detail, depth)})" if params else "")


def _part(part: Part, detail: _Detail, depth: int) -> str:
    args = [_argument(arg, detail, depth + 1) for arg in part.args]
    text = part.name + (f"<{', '.join(args)}>" if args else "")
    if part.params is None:
        return text + (part.tail if args else "")
    if not detail.params:
        return text
    given = _PLACEHOLDER.sub(lambda found: _placed(found, args), part.params)
    return f"{text}({_listed(given, detail, depth)})"


def _placed(placeholder: re.Match[str], args: list[str]) -> str:
    """Return the template argument nsys abbreviates as T1, T2, ...; a long one stays abbreviated."""
    number = int(placeholder.group(1)) - 1
    fits = 0 <= number < len(args) and len(args[number]) <= 40
    return args[number] if fits else placeholder.group()


def _argument(text: str, detail: _Detail, depth: int) -> str:
    text = text.strip()
    if number := _NUMBER.fullmatch(text):
        return number.group(1)
    if text in ("true", "false"):
        return str(int(text == "true"))
    return text if depth > _DEEPEST else _rendered(path(text), detail, library=False, depth=depth)


def _listed(params: str, detail: _Detail, depth: int) -> str:
    """Write a parameter list; three and more equal types in a row become ``float* x3``."""
    written = [_argument(param, detail, depth + 1) for param in split(params, ",")]
    runs = [(text, len(list(run))) for text, run in groupby(written)]
    return ", ".join(f"{text} x{n}" if n > 2 else ", ".join([text] * n) for text, n in runs)
