"""What does a kernel's name say: how to call it, its family, library, precision and tile?

Conventions
-----------
Every function takes the demangled full name and is a pure function of it. Names come from outside:
nothing in them is executed, nothing raises on them, and the time is linear in their length.

Functions
---------
base     function name alone, nsys's shortName
short    name for tables and charts, at most 80 characters, never one for two kinds of work
family   kind of work, one of FAMILIES
decode   library, architecture, precision, tile, layout, split, operation and a sentence
table    short name and family of many names
"""

from perfkit.names.decoding import decode, table
from perfkit.names.families import FAMILIES, Decoded, family
from perfkit.names.parsing import base
from perfkit.names.shortening import short

__all__ = [
    "FAMILIES",
    "Decoded",
    "base",
    "decode",
    "family",
    "short",
    "table",
]
