"""The checkpoints in `data`, which every later version has to load; `python -m tests.checkpoints.stored` wrote them.

They are never written again, nor does it write those that are there. A new format, or more in a checkpoint, gets new
ones beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from menv.algorithms import DQN, PPO, Algorithm
from tests.checkpoints.runs import REPLAYED, SMALL, by_seat, trained

DATA = Path(__file__).parent / "data"
TWO: dict[str, Any] = {"policies": ["a", "b"], "policy_mapping_fn": by_seat}
SMALLEST = {"fcnet_hiddens": [4]}

RUNS: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "format_1_ppo": (PPO, {**SMALL, "model": {**SMALLEST, "use_lstm": True, "lstm_cell_size": 2}}),
    "format_1_dqn": (
        DQN, {**REPLAYED, "model": SMALLEST, "replay_buffer_config": {"prioritized_replay": True, "capacity": 50}},
    ),
    "format_1_with_policies": (PPO, {**SMALL, "model": SMALLEST}),
    "format_1_with_frames": (
        PPO, {**SMALL, "model": SMALLEST, "agent_connectors": [("FrameStackAgentConnector", {"num_frames": 2})]},
    ),
    "format_1_with_units": (PPO, {**SMALL, "model": SMALLEST}),
}  # fmt: skip
WITHOUT_POLICIES = ("format_1_ppo", "format_1_dqn")
"""Those that hold nothing beside the run."""


def main() -> None:
    for name, (kind, config) in RUNS.items():
        if (DATA / name).exists():
            continue
        with kind(env="tictactoe", config={**config, "multiagent": TWO}) as algo:
            trained(algo, 2)
            algo.save(DATA / name)


if __name__ == "__main__":
    main()
