"""The parts of a demangled kernel name: scopes, function, template arguments, parameters.

Names may be cut, unbalanced or no C++ at all: nothing here raises on them, and every step takes linear time.
`canonical` brings the spellings of nsys, ncu and CUPTI (as in Kineto traces) to one text. The first rule that matches
``scope::function`` and, behind a space, the template arguments names the library; rules must be sure: a library's
kernels lose their parameter lists in `perfkit.names.short`.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

_PARTNER = {">": "<", ")": "(", "]": "[", "}": "{"}
# An operator's own brackets open nothing, and neither does an arrow.
_TOKEN = re.compile(r"\boperator(?:\(\)|<=>|<<=?|>>=?|->\*?|[<>]=?)|->|::|[<>()\[\]{}, ]")
_CANONICAL = (
    # ncu's CSV loses the "<" of "<unnamed>".
    (re.compile(r"\(anonymous namespace\)::|<unnamed>::|\bunnamed>::"), ""),
    (re.compile(r"\[lambda\(([^\[\]]*)\) \(instance (\d+)\)\]"), r"{lambda(\1)#\2}"),
    (re.compile(r"\blong long\b"), "longlong"),
    (re.compile(r"\bunsigned (?=[a-z])"), "u"),
    (re.compile(r"\bsigned char\b"), "schar"),
    (re.compile(r"\bdecltype\(nullptr\)"), "nullptr_t"),
    # "const float *" and "float const*" are one type; constness never makes two kernels.
    (re.compile(r"\bconst | ?\bconst\b"), ""),
    (re.compile(r" (?=[<>(*&,])"), ""),
)
_MANGLED_QUALIFIERS = re.compile(r"[rVK]*")
_MANGLED_NAME = re.compile(r"S[a-z]|S[0-9A-Z]*_|([1-9]\d{0,4})")
_MANGLED_LITERAL_OR_NAME = re.compile(r"L[a-z]n?\d+E|([1-9]\d{0,4})(?=[A-Za-z_])")


@dataclass(frozen=True)
class Part:
    """One step of a qualified name: ``name<args>(params)tail``; `params` is None where no list stands."""

    name: str
    args: tuple[str, ...] = ()
    params: str | None = None
    tail: str = ""


_NAMESPACES = re.compile(
    r"(?:at|c10|torch|std|cub|thrust|flash|pytorch_flash|vllm|sgl\w*|fbgemm_gpu|rocprim|hipcub|ck|ck_tile|aiter"
    r"|tensorrt_llm|flashinfer|cute|at_cuda_detail|cutlass\w*|xmma\w*|cudnn\w*|cask\w*|cublas\w*|nvfuser|apex|deep_ep)"
)
# Inner namespaces that only say where the code lies, among them versions such as CUB_200500_NS.
_FILLERS = re.compile(
    r"native|detail|impl|(?:binary_)?internal|ops|cnn|kernels|templates|cuda|headeronly|memory|tensor_operation|device"
    r"|[A-Z]+_\d{4,}\w*"
)
_REACH = 400  # longer names and arguments of arguments say nothing about the library
with Path(__file__).with_name("rules.toml").open("rb") as _file:
    RULES: Mapping[str, list[tuple[str, str]]] = tomllib.load(
        _file
    )  # the first pattern that a name matches decides
_LIBRARY_RULES = tuple(
    (library, re.compile(pattern, re.DOTALL)) for library, pattern in RULES["libraries"]
)


def base(full_name: str) -> str:
    """Return the function name without return type, namespaces, template arguments and parameters; empty only for "".

    This is what nsys stores as shortName. A name without C++ structure comes back unchanged; of a mangled name the
    innermost function name is returned.

    >>> base("void at::native::<unnamed>::max_pool_backward_nchw<float, float>(const T1 *, int)")
    'max_pool_backward_nchw'
    """
    return qualified(full_name)[-1].name


@lru_cache(maxsize=4096)
def qualified(full_name: str) -> tuple[Part, ...]:
    """Return the parts of a kernel's name, outermost namespace first, the function last; never empty."""
    text = full_name
    while text.endswith("]") and (at := text.rfind(" [clone ")) > 0:
        text = text[:at]
    text = text.removesuffix(".kd") or text  # AMD's kernel descriptor
    if text.startswith("_Z"):
        # Read the names of an Itanium-mangled function up to its template arguments, which become the tail.
        at = _MANGLED_QUALIFIERS.match(text, 3).end() if text.startswith("_ZN") else 2  # type: ignore[union-attr]
        names: list[str] = []
        while step := _MANGLED_NAME.match(text, at):
            at = step.end()
            if step.group(1):
                names.append(text[at : at + int(step.group(1))])
                at += int(step.group(1))
        scopes = tuple(Part(name) for name in names[:-1] if not name.startswith("_GLOBAL__N_"))
        return (*scopes, Part(names[-1], tail=text[at:])) if names and names[-1] else (Part(text),)
    if not any(mark in text for mark in ("(", "<", "::")):
        return (Part(text),)
    parts = path(canonical(text))
    return parts if parts[-1].name else (Part(text),)


def canonical(text: str) -> str:
    """Return `text` with the differences between demanglers removed."""
    for pattern, replacement in _CANONICAL:
        text = pattern.sub(replacement, text)
    return text


@lru_cache(maxsize=4096)
def path(text: str) -> tuple[Part, ...]:
    """Return the parts of a qualified name in canonical spelling; a return type before it is dropped."""
    parts: list[Part] = []
    for step in split(text, "::"):
        words = [part for part in (_part(word) for word in split(step, " ")) if part != Part("")]
        chosen = next(
            (i for i, part in enumerate(words) if part.params is not None), len(words) - 1
        )
        if chosen > 0:
            parts.clear()
        parts += words[chosen : chosen + 1]
    return tuple(parts) or (Part(text),)


def split(text: str, separator: str) -> list[str]:
    """Return the pieces of `text` between separators (``::``, ``,`` or a space) outside all brackets."""
    pieces, start, skip = [], 0, 0
    closing = _closing(text)
    for token in _TOKEN.finditer(text):
        if token.start() < skip:
            continue
        if token.start() in closing:
            skip = closing[token.start()]
        elif token.group() == separator:
            pieces.append(text[start : token.start()])
            start = token.end()
    return [*pieces, text[start:]]


def _closing(text: str) -> dict[int, int]:
    """Map each opening bracket to its closing one; a "<" that nothing closes reaches to the end."""
    closing: dict[int, int] = {}
    open_at: list[int] = []
    count = dict.fromkeys("<([{", 0)
    for token in _TOKEN.finditer(text):
        mark, at = token.group(), token.start()
        if mark in count:
            open_at.append(at)
            count[mark] += 1
        elif (
            (opener := _PARTNER.get(mark))
            and count[opener]
            and (mark != ">" or text[open_at[-1]] == "<")
        ):
            # A "<" inside parentheses that close first was a comparison.
            while True:
                last = open_at.pop()
                count[text[last]] -= 1
                if text[last] == opener:
                    break
            closing[last] = at
    return closing | dict.fromkeys(open_at, len(text))


def _part(text: str) -> Part:
    """Read ``name<args>(params)tail``; brackets at the start, as of a lambda, belong to the name."""
    closing = _closing(text)
    name_end, args, params, end = len(text), "", None, len(text)
    skip = 0
    for token in _TOKEN.finditer(text):
        at = token.start()
        if at < skip or at not in closing:
            continue
        skip = closing[at]
        if at == 0 or text[at] in "[{":
            continue
        name_end, end = min(name_end, at), skip + 1
        inside = text[at + 1 : skip]
        if text[at] == "<":
            args = inside
        else:
            params = inside
            break
    given = tuple(arg.strip() for arg in split(args, ",")) if args else ()
    return Part(text[:name_end], given, params, text[end:])


def template_names(mangled: str) -> list[str]:
    """Return the names of the templates in a piece of a mangled name, in their order."""
    templates, at = [], 0
    while step := _MANGLED_LITERAL_OR_NAME.search(mangled, at):
        at = step.end()
        if step.group(1):
            name_at, at = at, at + int(step.group(1))
            if mangled[at : at + 1] == "I":
                templates.append(mangled[name_at:at])
    return templates


def matching(names: Iterable[str], pattern: str) -> list[bool]:
    """Say of each name whether it contains `pattern`, or matches it if that holds ``*`` or ``?``, in any case.

    >>> matching(["sgemm_tn", "Softmax"], "soft"), matching(["sgemm_tn", "Softmax"], "*GEMM_?n")
    ([False, True], [True, False])
    """
    wanted = pattern.casefold()
    folded = (str(name).casefold() for name in names)
    if any(sign in wanted for sign in "*?"):
        return [fnmatchcase(name, wanted) for name in folded]
    return [wanted in name for name in folded]


@lru_cache(maxsize=4096)
def library_of(full_name: str) -> str:
    """Return the library a kernel comes from, or the empty string when its name does not say."""
    parts = qualified(full_name)
    args = ", ".join(parts[-1].args)[:_REACH]
    text = "::".join(part.name for part in parts)[:_REACH] + (" " + args if args else "")
    return next((library for library, pattern in _LIBRARY_RULES if pattern.search(text)), "")


def is_library(namespace: str) -> bool:
    """Return whether a namespace belongs to a library, whose kernels are known by their own names."""
    return _NAMESPACES.fullmatch(namespace) is not None


def is_filler(namespace: str) -> bool:
    """Return whether a namespace never tells two kernels of a library apart."""
    return is_library(namespace) or _FILLERS.fullmatch(namespace) is not None
