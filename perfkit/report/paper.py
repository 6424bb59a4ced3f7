"""The report on paper: what stands at the foot of each printed page."""

FOOT = "font: 8pt system-ui, sans-serif; color: #444444;"


# The first page alone is for a meeting: smaller type and pictures bring it onto two sheets.
COMPACT = """
@media print {
  body { font-size: 8.6pt; line-height: 1.35; }
  h1 { font-size: 1.2rem; margin: 0; } h2 { font-size: 1.1rem; margin: .7em 0 .3em; }
  h3 { font-size: 1rem; margin: .6em 0 .2em; }
  p, ul, ol { margin-bottom: .4em; } details:has(> dl) { display: none; }
  .outputs { margin-bottom: .4rem; }
  figure.chart { margin: .2rem 0; } figure.chart svg { max-height: 46mm; width: auto; }
  main .perfkit-verdict.perfkit-verdict { font-size: 1rem; margin: .2em 0 .4em; }
  main .perfkit-tile.perfkit-tile { padding: .2rem .5rem; } main .perfkit-tile.perfkit-tile b { font-size: 1rem; }
}
"""


def footed(page: str, *, name: str, date: str, is_compact: bool = False) -> str:
    """Return an HTML page that prints the run's name and date, and the number of each page, at its foot.

    `is_compact`: whether type and pictures are smaller on paper.
    """
    about = _quoted(f"{name}, {date}")
    style = (
        f"@page {{ @bottom-left {{ content: {about}; {FOOT} }} "
        f'@bottom-right {{ content: counter(page) " / " counter(pages); {FOOT} }} }}'
    )
    head, end, body = page.partition("</head>")
    style += COMPACT if is_compact else ""
    return f"{head}<style>{style}</style>\n{end}{body}"


def _quoted(text: str) -> str:
    r"""Return text as a string of CSS, with all but letters, digits and spaces as numbers.

    >>> _quoted("run 1</style>")
    '"run 1\\3c \\2f style\\3e "'
    """
    marks = (
        char if char.isascii() and (char.isalnum() or char == " ") else f"\\{ord(char):x} "
        for char in text
    )
    return f'"{"".join(marks)}"'
