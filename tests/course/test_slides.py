"""The labs as slides: each heading begins one, and none shows a solution."""

from pathlib import Path

import nbformat
from labs.submissions import NOTEBOOKS

from perfkit.course import slides
from perfkit.report.notebooks import folder


def test_each_heading_begins_a_slide_and_none_shows_an_answer() -> None:
    lab = nbformat.read(folder() / "labs" / "lab2_mlp_cnn.ipynb", as_version=4)
    found = slides.slides(lab)
    headings = [cell.source for cell in lab.cells if cell.source.startswith("#")]
    prose = [text for text in headings if not text.startswith("# Check")]
    assert len(prose) == len(found)
    assert prose[0].partition("\n")[0] == f"# {found[0][0]}"
    text = "\n".join(cell.source for _, slide in found for cell in slide.cells)
    assert "SOLUTION" not in text
    assert "assert " not in text
    assert "(1 point)" not in text  # a model answer tells the points of its parts


def test_slides_are_pages_that_load_nothing(tmp_path: Path) -> None:
    pages = slides.write(tmp_path / "slides")
    assert {*NOTEBOOKS} == {page.stem for page in pages}
    text = pages[0].read_text(encoding="utf-8")
    assert "scroll-snap" in text
    assert "default-src 'none'" in text
    assert 'src="http' not in text
