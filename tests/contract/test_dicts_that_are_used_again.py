"""Environments that return the very same dicts in each step, with other contents: every step is looked at anew."""

from __future__ import annotations

from typing import Any

from menv import to_base_env
from tests.worlds import Several

AGENTS = ("a", "b")


class SameDicts(Several):
    """Two agents; what comes when is written into five dicts that are never replaced.

    The script says for each step what is put into rewards, terminateds, truncateds and infos, by agent.
    """

    def __init__(self, script: list[dict[str, dict[str, Any]]]) -> None:
        super().__init__()
        self.script, self.kept = script, tuple(dict[str, Any]() for _ in range(5))

    def shown(self) -> Any:
        return self.living

    def written(self, *parts: dict[str, Any]) -> Any:
        for kept, part in zip(self.kept, parts, strict=False):
            kept.clear()
            kept.update(part)
        return self.kept

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.living = list(AGENTS)
        return self.written(super().reset()[0])[0], {}

    def step(self, action_dict: Any) -> Any:
        entry = self.script[self.at]
        self.at += 1
        calm = dict.fromkeys([*self.living, "__all__"], False)
        parts: dict[str, dict[str, Any]] = {
            "rewards": dict.fromkeys(self.living, 0.0), "terminateds": calm, "truncateds": calm,
            "infos": {agent: {} for agent in self.living},
        }  # fmt: skip
        changed = [part | entry.get(name, {}) for name, part in parts.items()]
        result = self.written(self.observe(), *changed)
        self.living = [agent for agent in self.living if not result[2][agent]]
        return result


def polls_of(script: list[dict[str, dict[str, Any]]]) -> list[Any]:
    """Return the six dicts of each poll, with copies of what they hold, for one sub-environment."""
    base_env = to_base_env(SameDicts(script))
    found = []
    for _ in range(len(script) + 1):
        ready = base_env.poll()
        found.append(
            [{agent: value for env in part.values() for agent, value in env.items()} for part in ready]
        )
        base_env.send_actions(ready.slots, [0] * len(ready.slots))
    return found


def test_a_flag_set_late_in_an_old_dict_ends_its_agent() -> None:
    quiet: dict[str, dict[str, Any]] = {}
    polls = polls_of([quiet, quiet, {"terminateds": {"a": True}}, quiet])
    assert [set(obs) for obs, *_ in polls] == [{"a", "b"}, {"a", "b"}, {"a", "b"}, {"b"}, {"b"}]
    assert [terminateds.get("a", False) for _, _, terminateds, *_ in polls] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_rewards_and_infos_that_appear_late_in_old_dicts_are_reported() -> None:
    quiet: dict[str, dict[str, Any]] = {}
    news: dict[str, dict[str, Any]] = {"rewards": {"b": 2.5}, "infos": {"a": {"lap": 1}}}
    polls = polls_of([quiet, quiet, news, quiet])
    assert [rewards["b"] for _, rewards, *_ in polls] == [0.0, 0.0, 0.0, 2.5, 0.0]
    assert [infos["a"] for *_, infos, _ in polls] == [{}, {}, {}, {"lap": 1}, {}]


# Flags and rewards that are views of one buffer: what a step before said is no longer what they hold.


def copies(buffer: Any) -> list[Any]:
    """Numbers of their own, for comparison."""
    return [buffer.item(index) for index in range(len(buffer))]
