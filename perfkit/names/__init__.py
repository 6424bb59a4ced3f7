"""What a kernel's name says: how to call it, its family, library, precision and tile.

Every function takes the demangled full name, any text, and is a pure function of it. Names come from outside: nothing
in them is executed, nothing raises on them, and the time is linear in their length.
"""

from perfkit.names.decoding import decode, table
from perfkit.names.families import FAMILIES, Decoded, family
from perfkit.names.parsing import base
from perfkit.names.shortening import short

__all__ = ["FAMILIES", "Decoded", "base", "decode", "family", "short", "table"]
