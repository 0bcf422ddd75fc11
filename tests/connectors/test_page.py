"""The page about connectors says what works."""

from __future__ import annotations

import re
from typing import Any

from tests.house.sources import ROOT


def test_the_code_of_the_page_runs() -> None:
    text = (ROOT / "docs" / "connectors.md").read_text("utf-8")
    seen: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/connectors.md", "exec"), seen)
    assert len(blocks) == 3
    assert "MeanStdObservationFilterAgentConnector" in seen["tree"]
    assert seen["action"].shape == (2,)
    assert seen["restored"].to_state() == seen["policy"].agent_connectors.to_state()
    seen["algo"].stop()
