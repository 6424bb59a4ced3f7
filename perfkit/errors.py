"""The three errors perfkit raises on purpose.

A message reads ``<path or argument>: <what is wrong, with the value found>. <what to do>.``
A wrong argument of a function is a ``ValueError`` that lists the legal values.
"""


class PerfkitError(Exception):
    """perfkit cannot answer; the message says why and what to do."""


class ReadError(PerfkitError):
    """A file is damaged, foreign or empty; the message names it and the remedy."""


class SchemaError(PerfkitError):
    """A frame does not match its table; the message lists every mismatch at once."""
