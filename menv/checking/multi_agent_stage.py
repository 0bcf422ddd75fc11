"""A `MultiAgentEnv` as a stage: whoever is in its observations waits.

`menv.checking.subject` makes one for each copy that is played.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.base_env import AgentId
from menv.checking.lives import Lives, require_five_dicts
from menv.checking.report import Broken, Report
from menv.checking.stage import Key, SpacePair, Stage, Turn, check_pair, describe, listed_agents
from menv.checking.values import check_mask_space


class MultiAgentStage(Stage):
    """Plays one multi-agent environment; the keys of its turns are `(0, agent_id)`."""

    def __init__(self, env: Any, report: Report) -> None:
        super().__init__(env, report)
        self._possible = listed_agents(env)
        self._known: dict[AgentId, SpacePair] = {}
        self._lives = Lives(report, self._space_of, frozenset(self._possible))

    @property
    def idle(self) -> bool:
        return self._lives.empty_steps > 0

    def check_spaces(self) -> None:
        self.find_spaces(lambda: any(self._undeclared(kind) for kind in ("observation", "action")))
        self._possible = listed_agents(self.env)
        self.late = self.late or not (self._possible or any(self.declared()))
        for kind in ("observation", "action"):
            self._check_declaration(kind)
        if not self._possible:
            self.report.add("ME006", "possible_agents is empty, expected all agents that may ever appear")
        for agent in self._possible:
            self._space_of(agent)
        self.check_signature(self.env.reset)

    def _undeclared(self, kind: str) -> bool:
        none = self.read(f"{kind}_spaces") is None and self.read(f"{kind}_space") is None
        return none and not _says_itself(self.env, kind)

    def _check_declaration(self, kind: str) -> None:
        by_agent, shared = self.read(f"{kind}_spaces"), self.read(f"{kind}_space")
        if self._undeclared(kind):
            raise Broken(
                "ME001",
                f"neither {kind}_spaces nor {kind}_space is declared, expected a space for every agent",
            )
        if (
            by_agent is None
            and shared is not None
            and not isinstance(shared, gym.Space)
            and not callable(shared)
        ):
            raise Broken("ME002", f"{kind}_space is a {type(shared).__name__}, expected a gymnasium.Space")

    def spaces(self, key: Key) -> SpacePair:
        return self._space_of(key[1])

    def _space_of(self, agent: AgentId) -> SpacePair:
        if agent not in self._known:
            who = f"agent {agent!r}: "
            try:
                pair = self.env.get_observation_space(agent), self.env.get_action_space(agent)
            except Exception as error:
                listed = next((known for known in self._known if str(known) == str(agent)), None)
                if listed is not None:
                    return self._known[listed]
                raise Broken("ME003", f"{who}has no space ({describe(error)})", self.env_steps) from error
            check_pair(self.report, who, *pair)
            check_mask_space(self.report, who, *pair)
            self._known[agent] = pair
        return self._known[agent]

    def reset(self, seed: int | None) -> Turn:
        result = self.call(
            "reset", code="ME091", **({"seed": seed, "options": None} if self.takes_seed else {})
        )
        obs, infos = self.require_pair(result)
        waiting = self._lives.begin(obs, infos, self.env_steps)
        shown = _keyed(waiting)
        return Turn(shown, dict(shown), infos=infos if isinstance(infos, dict) else {})

    def step(self, actions: dict[Key, Any]) -> Turn:
        self.env_steps += 1
        given = {agent: action for (_, agent), action in actions.items()}
        mine = dict(given)
        try:
            result = self.call("step", given, code="ME090")
        except Broken as broken:
            if self._lives.all_gone and not mine:
                broken.code = "ME044"
                broken.message = (
                    f"all agents ended, '__all__' was not set, and then step({{}}): {broken.message}"
                )
            raise
        if list(given) != list(mine) or any(given[agent] is not mine[agent] for agent in mine):
            self.report.add(
                "ME071",
                f"step was given actions for {sorted(map(repr, mine))[:8]} and left {sorted(map(repr, given))[:8]}",
                self.env_steps,
            )
        obs, rewards, terminateds, truncateds, infos = require_five_dicts(result, self.env_steps)
        waiting, over = self._lives.step((obs, rewards, terminateds, truncateds, infos), self.env_steps)
        self.episodes += over
        return Turn(_keyed(waiting), _keyed(obs), rewards, (terminateds, truncateds), infos, over)

    def finish(self) -> None:
        self._lives.finish()


def _keyed(by_agent: dict[AgentId, Any]) -> dict[Key, Any]:
    return {(0, agent): value for agent, value in by_agent.items()}


def _says_itself(env: Any, kind: str) -> bool:
    method = getattr(type(env), f"get_{kind}_space", None)
    return getattr(method, "__module__", "menv.multi_agent_env") != "menv.multi_agent_env"
