"""What stands at the foot of the printed pages, and that a hostile name of a run stays text."""

from perfkit.report import paper

PAGE = "<html><head><title>x</title></head><body></body></html>"


def test_each_sheet_has_the_name_of_the_run_its_date_and_its_number() -> None:
    html = paper.footed(PAGE, name="run 1", date="2026")
    assert 'content: "run 1\\2c  2026"' in html
    assert 'counter(page) " / " counter(pages)' in html


def test_the_name_of_a_run_ends_no_style() -> None:
    html = paper.footed(PAGE, name='a"}</style><script>', date="2026")
    assert 1 == html.count("</style>")
    assert "<script>" not in html


def test_only_the_first_page_alone_is_compact() -> None:
    whole, alone = (
        paper.footed(PAGE, name="a", date="b", is_compact=each) for each in (False, True)
    )
    assert "font-size" not in whole
    assert "font-size" in alone
