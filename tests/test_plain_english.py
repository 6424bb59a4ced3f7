"""The texts that people read are plain English: short sentences, easy words, no confusing phrases."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.rules import rules

ROOT = Path(__file__).parents[1]
STEPS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb") if not path.stem.startswith("0_"))
LABS = sorted(path.stem for path in (ROOT / "notebooks" / "labs").glob("*.ipynb"))
GUIDES = ["README.md", "CONTRIBUTING.md", "notebooks/labs/README.md"]

LONG = 25  # words: more than this in one sentence is long
LONG_SHARE = 0.05  # of the sentences of a text may be long
EASE = 55.0  # Flesch reading ease of the prose in notebooks: 60 to 70 is plain English

BANNED = [
    "what is said of",
    "nothing is said of",
    "those that",
    "those which",
    "of which there",
    "beside it",
    "told by",
    "at most this",
    "in the mean",
    "goes on without",
    "nothing computes beside",
    "was bought for",
    "were bought for",
    "never meant here",
    "is no fault",
    "holds them up",
    "is said only where",
    "the one or the other",
    "changed its ways",
    "that can be won",
    "can be told",
    "cannot be told",
    "that do so for",
    "the bytes fewer",
    "takes over",
    "the other way round",
    "whatever the largest",
    "tells the cause",
    "are not to be",
    "an order in which",
]


def _prose(markdown: str) -> Iterator[str]:
    """The sentences of Markdown: code, tables, headings' marks, formulas and the targets of links are left out."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S)
    text = re.sub(r"<[^>]+>|!\[[^\]]*\]\([^)]*\)|\$\$.*?\$\$|\$[^$]+\$", "", text, flags=re.S)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]+`", "C0", text)  # counts as one word, and as a name
    text = re.sub(r"\s+(?=\([a-e]\) )|\s*\(\d points?\)\.?|:$", "\n\n", text, flags=re.M)  # parts of a question
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
    return any(c.isdigit() for c in word) or any(c.isupper() for c in word[1:]) or (word[0].isupper() and not first)


def _syllables(word: str) -> int:
    """The syllables of an English word: groups of vowels, less the silent e, plus the vowels that part."""
    word = re.sub(r"[^a-z]", "", word.lower())
    count = len(re.findall(r"[aeiouy]+", word))
    if re.search(r"[^aeiouyl]e$|[^aeiouyszxcg]es$|(?<![gcs]h)[^aeiouytd]ed$|[aeiouy]le$|[aeiou][cg]ed$", word):
        count -= 1
    count += len(re.findall(r"(?<![tscgx])i[ao](?!u)|(?<=[^q])ua(?=l|t)|eo(?=us)|ying|(?<!u)ier$", word))
    return max(count, 1)


def _ease(sentences: list[str]) -> float:
    """The Flesch reading ease; names are left out."""
    kept = [[w for i, w in enumerate(_words(s)) if not _is_name(w, i == 0)] for s in sentences]
    kept = [words for words in kept if words]
    words = [part for sentence in kept for word in sentence for part in word.split("-")]
    return 206.835 - 1.015 * len(words) / len(kept) - 84.6 * sum(map(_syllables, words)) / len(words)


def _long(sentences: list[str]) -> list[str]:
    return [sentence for sentence in sentences if len(_words(sentence)) > LONG]


def _check_length(sentences: list[str]) -> None:
    long = _long(sentences)
    assert len(long) <= LONG_SHARE * len(sentences), "\n".join([f"{len(long)} of {len(sentences)} are long:", *long])


def _check_phrases(texts: list[str]) -> None:
    found = [f"{phrase!r}: {text}" for text in texts for phrase in BANNED if phrase in text.lower()]
    assert not found, "\n".join(found)


def _notebook(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [s for cell in cells if cell.cell_type == "markdown" for s in _prose(cell.source)]


def _strings(source: str) -> Iterator[str]:
    """The texts of a module: strings of four words or more, and the first paragraph of each docstring."""
    tree = ast.parse(source)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield " ".join(text.split("\n\n")[0].split())
            inside.add(id(node.body[0].value))  # type: ignore[attr-defined]
        elif isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node)}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield from [node.value] * (len(_words(node.value)) > 3)


def _package() -> dict[str, list[str]]:
    """The texts of each module."""
    modules = sorted((ROOT / "perfkit").rglob("*.py"))
    return {str(path.relative_to(ROOT)): list(_strings(path.read_text(encoding="utf-8"))) for path in modules}


def _rules() -> dict[str, list[str]]:
    """What each rule says, without its commands and names of parameters."""
    of = {
        rule.name: [rule.question, rule.threshold, rule.indirect, rule.reason, *(step.text for step in rule.advice)]
        for rule in rules().values()
    }
    return {name: [text for text in texts if text] for name, texts in of.items()}


@pytest.mark.parametrize(
    ("word", "syllables"),
    [
        ("kernel", 2),
        ("time", 1),
        ("times", 1),
        ("launched", 1),
        ("waited", 2),
        ("table", 2),
        ("idle", 2),
        ("operation", 4),
        ("utilisation", 5),
        ("communication", 5),
        ("median", 3),
        ("copies", 2),
        ("while", 1),
        ("memory", 3),
        ("queue", 1),
        ("average", 3),
        ("manual", 3),
        ("baseline", 2),
        ("figure", 2),
        ("trace", 1),
        ("traces", 2),
        ("used", 1),
        ("reading", 2),
        ("multiprocessor", 5),
    ],
)
def test_syllables_are_counted_as_a_person_counts_them(word: str, syllables: int) -> None:
    """The counter agrees with a count by hand; silent letters inside a compound (baseline) are the one exception."""
    assert _syllables(word) == syllables + (word == "baseline")


def test_reading_ease_is_that_of_flesch() -> None:
    """Six words of one syllable: 206.835 - 1.015 * 6 - 84.6."""
    assert _ease(["The cat sat on the mat."]) == pytest.approx(116.145)


def test_code_tables_and_links_are_left_out() -> None:
    """What remains of Markdown is sentences of words."""
    text = "# Title\n\nSee [the page](x.md). Set `a=1` now.\n\n| a b | c d |\n\n    code here it is\n\n- An item here"
    assert list(_prose(text)) == ["See the page.", "Set C0 now.", "An item here"]


@pytest.mark.parametrize("name", STEPS)
def test_notebooks_are_easy_to_read(name: str) -> None:
    """At most one sentence in twenty of all notebooks is long; each notebook's prose reads as plain English."""
    sentences = _notebook(ROOT / "notebooks" / f"{name}.ipynb")
    _check_phrases(sentences)
    _check_length(sentences)
    assert _ease(sentences) > EASE


@pytest.mark.parametrize("name", LABS)
def test_labs_are_easy_to_read(name: str) -> None:
    """At most one sentence in twenty of a lab is long."""
    sentences = _notebook(ROOT / "notebooks" / "labs" / f"{name}.ipynb")
    _check_phrases(sentences)
    _check_length(sentences)
    assert _ease(sentences) > EASE


@pytest.mark.parametrize("name", GUIDES)
def test_guides_are_easy_to_read(name: str) -> None:
    """At most one sentence in twenty of a guide is long."""
    sentences = list(_prose((ROOT / name).read_text(encoding="utf-8")))
    _check_phrases(sentences)
    _check_length(sentences)


def test_the_package_says_none_of_the_banned_phrases() -> None:
    """Titles, definitions, labels, notes, errors, help and docstrings."""
    _check_phrases([f"{path}: {text}" for path, texts in _package().items() for text in texts])


def test_sentences_of_the_package_are_short() -> None:
    """At most one in twenty of the sentences in the package's texts is long."""
    texts = [s for strings in _package().values() for text in strings for s in _sentences(text)]
    _check_length(texts)


def test_rules_say_none_of_the_banned_phrases() -> None:
    """Questions, thresholds, doubts, reasons and advice of every finding."""
    _check_phrases([f"{name}: {text}" for name, texts in _rules().items() for text in texts])


def test_sentences_of_rules_are_short() -> None:
    """At most one in twenty of the sentences in the rules is long."""
    _check_length([s for texts in _rules().values() for text in texts for s in _sentences(text)])


def test_steps_of_advice_start_with_a_verb() -> None:
    """A step is an order: its first word is a capitalised verb, never an article, a pronoun or a preposition."""
    weak = {"The", "A", "An", "It", "This", "That", "What", "Which", "There", "Heat", "Where", "In", "On", "For"}
    steps = {step.text for rule in rules().values() for step in rule.advice}
    assert len(steps) > 100
    assert not [text for text in sorted(steps) if text.split()[0] in weak or not text[0].isupper()]


SAMPLES = ["bert_a100", "bert_a100_optimised", "dlrm_h100", "mlp_a100", "resnet18_a100"]
REAL = [
    "hpctoolkit/hpctoolkit-allgather-database",
    "hpctoolkit/hpctoolkit-dlrm-gpu-database",
    "monitor/Timez-zx__nccl-tests__nccl-fault.log",
    "ncu/thedavidchu__speedy_scan__profile.ncu-rep",
    "nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite",
    "nsys/MohanadOdema__DLProf__w_Relu_nsys_profile.sqlite",
    "nsys/hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite",
    "torch/kineto__gpu_metrics_input.json",
    "torch/kineto__resnet50_autograd_api_num_workers_0__worker0.pt.trace.json.gz",
    "torch/sidnb13__torch-profiling-tutorial__transformer",
]


@pytest.mark.parametrize(("folder", "names"), [("data", SAMPLES), ("real", REAL)])
def test_findings_are_easy_to_read(folder: str, names: list[str], request: pytest.FixtureRequest) -> None:
    """Titles and explanations of all findings in the sample recordings, and in ten real captures."""
    texts: list[str] = []
    for name in names:
        path = request.getfixturevalue("profiles") / name if folder == "real" else ROOT / folder / name
        found = diagnosis.findings(perfkit.load(path))
        texts += [s for one in found for text in (one.title, one.explanation) for s in _sentences(text)]
    assert len(texts) > 50
    _check_length(texts)
    assert _ease(texts) > EASE
