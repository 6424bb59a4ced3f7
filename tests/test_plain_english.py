"""The texts that people read are plain English: short sentences, easy words, no confusing phrases."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import extras
import nbformat
import pytest
from docs.pages import PART, pages

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.rules import rules

ROOT = Path(__file__).parents[1]
STEPS = sorted(
    path.stem for path in (ROOT / "notebooks").glob("*.ipynb") if not path.stem.startswith("0_")
)
LABS = sorted(path.stem for path in (ROOT / "notebooks" / "labs").glob("*.ipynb"))
DOCS = sorted(f"docs/{name}" for name in pages(ROOT))
GUIDES = ["README.md", "CONTRIBUTING.md", "notebooks/labs/README.md", *DOCS]

LONG = 25  # words: more than this in one sentence is long
LONG_SHARE = 0.05  # of the sentences of a text may be long
EASE = 55.0  # Flesch reading ease of the prose in notebooks: 60 to 70 is plain English

BANNED = [
    *(
        "what is said of",
        "nothing is said of",
        "those that",
        "those which",
        "of which there",
        "beside it",
        "told by",
    ),
    *(
        "at most this",
        "in the mean",
        "goes on without",
        "nothing computes beside",
        "was bought for",
        "were bought for",
    ),
    *(
        "never meant here",
        "is no fault",
        "holds them up",
        "is said only where",
        "the one or the other",
    ),
    *(
        "changed its ways",
        "that can be won",
        "can be told",
        "cannot be told",
        "that do so for",
        "the bytes fewer",
    ),
    *(
        "takes over",
        "the other way round",
        "whatever the largest",
        "tells the cause",
        "are not to be",
    ),
    "an order in which",
]


def _prose(markdown: str) -> Iterator[str]:
    """The sentences of Markdown: code, tables, headings' marks, formulas and the targets of links are left out."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S)
    text = re.sub(r"<[^>]+>|!\[[^\]]*\]\([^)]*\)|\$\$.*?\$\$|\$[^$]+\$", "", text, flags=re.S)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]+`", "C0", text)  # counts as one word, and as a name
    text = re.sub(
        r"\s+(?=\([a-e]\) )|\s*\(\d points?\)\.?|:$", "\n\n", text, flags=re.M
    )  # parts of a question
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", text):
        if block.lstrip().startswith("|") or (block.startswith("    ") and block.strip()):
            continue
        block = re.sub(r"^#+ .*$", "", block, flags=re.M)
        block = re.sub(r"^\s*(?:[-*]|\d+\.)\s+|[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", block)
        yield from _sentences(" ".join(block.split()))


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a text: they end with a full stop, a question mark or an exclamation mark."""
    for sentence in re.split(r"(?<=[.!?])[”\")]*\s+(?=[“\"(]?(?:[A-Z0-9]|perfkit))", text):
        if len(_words(sentence)) > 1:
            yield sentence


def _words(sentence: str) -> list[str]:
    """The words of a sentence; numbers and units alone are none."""
    return re.findall(r"[A-Za-z][A-Za-z0-9'\u2019]*(?:-[A-Za-z]+)*", sentence)


def _is_name(word: str, first: bool) -> bool:
    """Whether a word is a name or an abbreviation, which no writer can choose: A100, NVLink, Nsight, FLOP."""
    return (
        any(c.isdigit() for c in word)
        or any(c.isupper() for c in word[1:])
        or (word[0].isupper() and not first)
    )


def _syllables(word: str) -> int:
    """The syllables of an English word: groups of vowels, less the silent e, plus the vowels that part."""
    word = re.sub(r"[^a-z]", "", word.lower())
    count = len(re.findall(r"[aeiouy]+", word))
    if re.search(
        r"[^aeiouyl]e$|[^aeiouyszxcg]es$|(?<![gcs]h)[^aeiouytd]ed$|[aeiouy]le$|[aeiou][cg]ed$", word
    ):
        count -= 1
    count += len(
        re.findall(r"(?<![tscgx])i[ao](?!u)|(?<=[^q])ua(?=l|t)|eo(?=us)|ying|(?<!u)ier$", word)
    )
    return max(count, 1)


def _ease(sentences: list[str]) -> float:
    """The Flesch reading ease; names are left out."""
    kept = [[w for i, w in enumerate(_words(s)) if not _is_name(w, i == 0)] for s in sentences]
    kept = [words for words in kept if words]
    words = [part for sentence in kept for word in sentence for part in word.split("-")]
    return (
        206.835 - 1.015 * len(words) / len(kept) - 84.6 * sum(map(_syllables, words)) / len(words)
    )


def _check_length(sentences: list[str]) -> None:
    long = [sentence for sentence in sentences if len(_words(sentence)) > LONG]
    assert len(long) <= LONG_SHARE * len(sentences), "\n".join(
        [f"{len(long)} of {len(sentences)} are long:", *long]
    )


def _check_phrases(texts: list[str]) -> None:
    found = [f"{phrase!r}: {text}" for text in texts for phrase in BANNED if phrase in text.lower()]
    assert not found, "\n".join(found)


def _check(sentences: list[str], ease: float = EASE) -> None:
    _check_phrases(sentences)
    _check_length(sentences)
    assert _ease(sentences) > ease


def _notebook(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [s for cell in cells if cell.cell_type == "markdown" for s in _prose(cell.source)]


def _strings(source: str) -> Iterator[str]:
    """The texts of a module: strings of four words or more, and the first paragraph of each docstring."""
    tree = ast.parse(source)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield " ".join(text.split("\n\n")[0].split())
            inside.add(id(node.body[0].value))  # type: ignore[attr-defined]
        elif isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node)}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield from [node.value] * (len(_words(node.value)) > 3)


def _package() -> dict[str, list[str]]:
    modules = sorted((ROOT / "perfkit").rglob("*.py"))
    return {
        str(path.relative_to(ROOT)): list(_strings(path.read_text(encoding="utf-8")))
        for path in modules
    }


def _rules() -> dict[str, list[str]]:
    of = {
        rule.name: [
            rule.question,
            rule.threshold,
            rule.indirect,
            rule.reason,
            *(step.text for step in rule.advice),
        ]
        for rule in rules().values()
    }
    return {name: [text for text in texts if text] for name, texts in of.items()}


SYLLABLES = {
    1: ("time", "times", "launched", "while", "queue", "trace", "used"),
    2: ("kernel", "waited", "table", "idle", "copies", "figure", "traces", "reading"),
    3: (
        "median",
        "memory",
        "average",
        "manual",
        "baseline",
    ),  # a silent letter inside a compound is the one exception
    4: ("operation",),
    5: ("utilisation", "communication", "multiprocessor"),
}


def test_sentences_words_and_syllables_are_counted_as_a_person_counts_them() -> None:
    assert SYLLABLES == {
        count: tuple(w for w in words if _syllables(w) == count)
        for count, words in SYLLABLES.items()
    }
    # Six words of one syllable: 206.835 - 1.015 * 6 - 84.6.
    assert _ease(["The cat sat on the mat."]) == pytest.approx(116.145)
    text = "# Title\n\nSee [the page](x.md). Set `a=1` now.\n\n| a b | c d |\n\n    code here it is\n\n- An item here"
    assert list(_prose(text)) == ["See the page.", "Set C0 now.", "An item here"]


@pytest.mark.parametrize("name", STEPS)
def test_notebooks_are_easy_to_read(name: str) -> None:
    _check(_notebook(ROOT / "notebooks" / f"{name}.ipynb"))


@pytest.mark.parametrize("name", LABS)
def test_labs_are_easy_to_read(name: str) -> None:
    _check(_notebook(ROOT / "notebooks" / "labs" / f"{name}.ipynb"))


@pytest.mark.parametrize("name", GUIDES)
def test_guides_are_easy_to_read(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    _check(list(_prose(PART.sub("", text))), ease=0)


@pytest.mark.parametrize("texts", [_package, _rules])
def test_texts_of_the_package_are_short_and_hold_no_banned_phrase(
    texts: Callable[[], dict[str, list[str]]],
) -> None:
    found = texts()
    _check_phrases([f"{name}: {text}" for name, of in found.items() for text in of])
    _check_length([s for of in found.values() for text in of for s in _sentences(text)])


def test_steps_of_advice_start_with_a_verb() -> None:
    weak = {
        "The",
        "A",
        "An",
        "It",
        "This",
        "That",
        "What",
        "Which",
        "There",
        "Heat",
        "Where",
        "In",
        "On",
        "For",
    }
    steps = {step.text for rule in rules().values() for step in rule.advice}
    assert len(steps) > 100
    assert not [text for text in sorted(steps) if text.split()[0] in weak or not text[0].isupper()]


SAMPLES = ["bert_a100", "bert_a100_optimised", "dlrm_h100", "mlp_a100"]
REAL = [
    "hpctoolkit/hpctoolkit-allgather-database",
    "monitor/Timez-zx__nccl-tests__nccl-fault.log",
    "ncu/thedavidchu__speedy_scan__profile.ncu-rep",
    "nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite",
    "nsys/MohanadOdema__DLProf__w_Relu_nsys_profile.sqlite",
    "nsys/hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite",
    "torch/kineto__resnet50_autograd_api_num_workers_0__worker0.pt.trace.json.gz",
    "torch/sidnb13__torch-profiling-tutorial__transformer",
]


@pytest.mark.parametrize("names", [SAMPLES, REAL], ids=["samples", "real captures"])
def test_findings_are_easy_to_read(names: list[str], request: pytest.FixtureRequest) -> None:
    folder = ROOT / "data" if names is SAMPLES else request.getfixturevalue("profiles")
    extras.require_reader(*names)
    texts: list[str] = []
    for path in (folder / name for name in names):
        found = diagnosis.findings(perfkit.load(path))
        texts += [
            s for one in found for text in (one.title, one.explanation) for s in _sentences(text)
        ]
    assert len(texts) > 50
    _check_length(texts)
    assert _ease(texts) > EASE
