"""The words of a page that a reader sees before he opens anything."""

from html.parser import HTMLParser

HIDDEN = frozenset(("head", "header", "script", "style", "svg", "details"))


class _Seen(HTMLParser):
    """The words outside of what is hidden: code, scripts, folded parts, the links to other pages."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._open: list[str] = []  # the elements from the outermost hidden one on

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_code = tag == "div" and dict(attrs).get("class") == "code"
        is_inside = bool(self._open) and tag == self._open[0]
        if is_inside or (not self._open and (tag in HIDDEN or is_code)):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag == self._open[0]:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.words += data.split()


def words(page: str) -> list[str]:
    """Return the words that a page shows.

    >>> words('<head>no</head><p>two words</p><div class="code"><div>no</div>no</div><style>no</style>')
    ['two', 'words']
    """
    seen = _Seen()
    seen.feed(page)
    return seen.words
