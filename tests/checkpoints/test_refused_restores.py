"""What a run cannot take over is refused before anything of it has changed, in a line that names the setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN
from menv.errors import CallOrderError, ConfigError, EnvCrashError
from tests.checkpoints.forged import forge
from tests.checkpoints.runs import REPLAYED, trained, weights_of
from tests.worlds import Alone

MEMORY: dict[str, Any] = {"fcnet_hiddens": [16], "use_gru": True}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a smaller buffer": ({}, {"replay_buffer_config": {"capacity": 40}}, "capacity 40"),
    "priorities": ({}, {"replay_buffer_config": {"prioritized_replay": True}}, "prioritized_replay"),
    "no priorities": ({"replay_buffer_config": {"prioritized_replay": True}}, {}, "prioritized_replay"),
    "longer sequences": (
        {"model": {**MEMORY, "max_seq_len": 4}},
        {"model": {**MEMORY, "max_seq_len": 5}},
        "4 rows.* 5.*max_seq_len",
    ),
}


@pytest.mark.slow_unless("a smaller buffer-False", "priorities-True", "no priorities-False")
@pytest.mark.parametrize("trained_before", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_experience_that_does_not_fit_is_refused_before_anything_changes(
    name: str, trained_before: bool, tmp_path: Path
) -> None:
    saved, own, message = OTHERS[name]
    with DQN(env="CartPole-v1", config={**REPLAYED, **saved}) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
    with (
        DQN(env="CartPole-v1", config={**REPLAYED, **own, "seed": 4}) as algo,
        DQN(env="CartPole-v1", config={**REPLAYED, **own, "seed": 4}) as alone,
    ):
        for one in (algo, alone):
            trained(one, int(trained_before))
        with pytest.raises(ConfigError, match=message):
            algo.restore(tmp_path)
        assert weights_of(algo) == weights_of(alone)
        ends = [trained(one, 1) for one in (algo, alone)]
        assert ends[0]["digest"] == ends[1]["digest"]
        assert ends[0]["training_iteration"] == ends[1]["training_iteration"]
        assert weights_of(algo) == weights_of(alone)


def test_save_without_a_folder_asks_for_one() -> None:
    with DQN(env="CartPole-v1", config=REPLAYED) as algo, pytest.raises(ConfigError, match="save"):
        algo.save()


class Shut(Alone):
    """Cannot be reset while it is shut."""

    observation_space, length = gym.spaces.Box(-1, 1, (2,), np.float32), 5
    shut = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if Shut.shut:
            raise ConnectionRefusedError("closed until noon")
        return super().reset(seed=seed)

    def see(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def test_an_interrupted_restore_must_be_completed_first(tmp_path: Path) -> None:
    """There would be weights of one run, and counts and episodes of the other."""
    with DQN(env=Shut, config=REPLAYED) as algo:
        algo.train()
        algo.save(tmp_path)
        algo.restore(tmp_path)
        expected = algo.train()["digest"]
        Shut.shut = True
        try:
            with pytest.raises(EnvCrashError, match="closed until noon"):
                algo.restore(tmp_path)
        finally:
            Shut.shut = False
        calls: list[Any] = [algo.train, algo.sample, algo.evaluate, lambda: algo.save(tmp_path)]
        for call in calls:
            with pytest.raises(CallOrderError, match="restore"):
                call()
        algo.restore(tmp_path)
        assert algo.train()["digest"] == expected


@pytest.mark.parametrize(("name", "keys", "value", "said"), [
    ("manifest.json", ["algorithm"], 3, "checkpoint"),
    ("manifest.json", ["config"], {}, "restored"),
    ("manifest.json", ["config", "multiagent", "policies"], 1, "restored"),
    ("manifest.json", ["files", "state.json"], {}, "file"),
    ("state.json", ["iteration"], "", "save"),
])  # fmt: skip
def test_a_forged_checkpoint_with_right_hashes_is_refused_in_one_line(
    name: str, keys: list[Any], value: Any, said: str, tmp_path: Path
) -> None:
    with DQN(env="CartPole-v1", config=REPLAYED) as algo:
        algo.train()
        folder = algo.save(tmp_path)
        forge(folder, name, keys, value)
        for load in (algo.restore, DQN.from_checkpoint):
            with pytest.raises(ConfigError, match=said) as caught:
                load(tmp_path)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 600
