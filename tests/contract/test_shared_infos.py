"""Infos of a whole sub-environment, under "__common__": callbacks see the latest, each episode its own."""

from __future__ import annotations

from typing import Any

import pytest

from menv import ContractError, DefaultCallbacks, to_base_env
from menv.algorithms import PPO
from tests.contract.scripted import SixDicts
from tests.worlds import Several


class Counted(Several):
    """Episodes of 4 env steps; says which it is and how far. After the second step nobody waits."""

    length = 4

    def shown(self) -> Any:
        return [] if self.at == 2 else self.possible_agents

    def infos(self) -> Any:
        if self.config.get("wrong") and self.at == 2:
            return {"__common__": "late"}
        told = (
            {}
            if self.at in self.config.get("quiet", ())
            else {"__common__": {"episode": self.episode, "at": self.at}}
        )
        return {**told, **({"a": {}} if self.at and self.shown() else {})}


class Seen(DefaultCallbacks):
    """What is seen when."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, Any]] = []

    def note(self, hook: str, episode: Any) -> None:
        info = episode.last_info_for("__common__")
        self.lines.append((hook, (info["episode"], info["at"]) if info else None))

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        self.note("start", episode)

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        self.note("step", episode)

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        self.note("end", episode)


def seen(env: Any, **config: Any) -> list[tuple[str, Any]]:
    callbacks = Seen()
    size = {"rollout_fragment_length": 8, "train_batch_size": 8}
    with PPO(env=env, config={**size, "callbacks": callbacks, **config}) as algo:
        algo.sample()
    return callbacks.lines


WHOLE = [
    ("start", (0, 0)),
    ("step", (0, 1)),
    ("step", (0, 3)),
    ("step", (0, 4)),
    ("end", (0, 4)),
    ("start", (1, 0)),
]


@pytest.mark.parametrize(
    "env", [Counted, lambda context: SixDicts([Counted()], "now")], ids=["MultiAgentEnv", "BaseEnv"]
)
def test_each_hook_sees_the_info_of_its_own_step(env: Any) -> None:
    assert seen(env)[:6] == WHOLE


def test_the_same_holds_for_environments_in_other_processes() -> None:
    lines = seen(Counted, remote_worker_envs=True, engine="process")
    assert lines[:6] == WHOLE


def test_an_info_goes_to_no_other_episode() -> None:
    lines = seen(Counted, env_config={"quiet": (0, 4)})
    assert lines[:4] == [("start", None), ("step", (0, 1)), ("step", (0, 3)), ("step", (0, 3))]
    assert lines[4:6] == [("end", (0, 3)), ("start", None)]


def test_the_six_dicts_have_the_common_info() -> None:
    base_env = to_base_env(Counted({}), make_env=lambda index: Counted({}), num_envs=2)
    infos = base_env.poll()[4]
    assert infos[0] == {"a": {}, "b": {}, "__common__": {"episode": 0, "at": 0}}
    base_env.stop()


def test_a_common_info_that_is_not_a_dict_is_refused() -> None:
    with pytest.raises(ContractError, match="'__common__'"):
        seen(Counted, env_config={"wrong": True})
