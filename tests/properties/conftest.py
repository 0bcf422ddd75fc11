"""What the property tests have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def no_pauses() -> Iterator[None]:
    """Replacements that fail need no time to be tried again here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("menv.adapters.local_envs.PAUSE", 0.0)
        yield
