"""The keys that each section of a config has.

`keywords` writes them down where a section's class is defined, `classic_hints` reads them.
"""

from __future__ import annotations

SECTION_KEYS: dict[str, frozenset[str]] = {}
"""The keys by the section's name, of the sections whose classes have been imported."""
