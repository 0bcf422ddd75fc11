"""The page about connectors says what works."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.house.sources import ROOT


def test_the_code_of_the_page_runs() -> None:
    text = (ROOT / "docs" / "reference" / "connectors.md").read_text("utf-8")
    seen: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/reference/connectors.md", "exec"), seen)
    assert len(blocks) == 4
    assert "MeanStdObservationFilterAgentConnector" in seen["tree"]
    assert seen["action"].shape == (2,)
    assert seen["restored"].to_state() == seen["policy"].agent_connectors.to_state()
    obs = [np.array([0.1, -2.0, 0.02, 3.0, 8.0, 6.0], np.float32)]
    main, past = (seen[name].compute_actions(obs, explore=False) for name in ("main", "past"))
    assert past[2]["action_logp"] == main[2]["action_logp"]
    seen["algo"].stop()
