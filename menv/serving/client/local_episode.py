"""An episode that a client plays with its own copy of the policies.

`PolicyClient` calls `LocalEpisode`, and `LocalActor` collects its chunks for the server. It keeps a `LocalTrajectory`
for each agent; a single-agent episode has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, SINGLE_AGENT, Column
from menv.errors import CallOrderError, ContractError, EpisodeError
from menv.external_env import keyed_by_agent
from menv.inference.network_policy import ComputedAction
from menv.serving.client.client_session import to_wire
from menv.serving.client.local_actor import ADVICE, ClientGenerator, LocalPolicy
from menv.serving.client.policy_client import check_agent
from menv.serving.protocol import to_raw
from menv.spaces import OutsideSpaceError, stack

if TYPE_CHECKING:
    from msgspec import Raw

    from menv.serving.client.local_actor import LocalActor
    from menv.serving.client.policy_client import RemoteEpisode


_LEAVES = (gym.spaces.Box, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)


@dataclass(slots=True)
class _Step:
    """An observation and its env step, and what followed it: arrays of one row, None until it is known."""

    obs: Any
    env_t: int
    action: Column | None = None
    row: Column | None = None
    mask: Column | None = None
    state: Column | None = None
    weights_number: int = 0
    reward: float | None = None
    inputs: Column | None = None
    logp: Column | None = None


def _stacked(steps: list[_Step], name: str) -> Column | None:
    """Return a column of N steps, None if they have none."""
    rows = [getattr(step, name) for step in steps]
    return None if not rows or rows[0] is None else np.concatenate(rows)


class LocalTrajectory:
    """The steps of one agent that are not sent yet: n complete ones, and perhaps one without its reward.

    `state` is the recurrent state before the next step, and `reward` the sum of rewards since the last action. `t` is
    the index of the first step in this buffer.
    """

    def __init__(self, policy: LocalPolicy, generator: ClientGenerator, t: int, where: str) -> None:
        self.policy, self.generator, self.t, self._where = policy, generator, t, where
        size = policy.state_size
        self.state = np.zeros((1, size), np.float32) if size else None
        self.reward = 0.0
        self.terminated = self.truncated = False
        self._steps: list[_Step] = []

    @property
    def begun(self) -> bool:
        """Whether the agent has acted, in the buffer or before."""
        return bool(self.t or (self._steps and self._steps[0].action is not None))

    @property
    def over(self) -> bool:
        """Whether the trajectory has ended."""
        return self.terminated or self.truncated

    def observe(self, obs: Any, env_t: int = 0) -> bool:
        """Add a copy of an observation; return whether it completes a step.

        It replaces an observation without an action: the call that brought that one failed and is repeated.
        """
        completes = self._complete_step()
        if self._steps and self._steps[-1].action is None:
            self._steps.pop()
        if type(obs) is np.ndarray:
            obs = obs.copy()
        elif isinstance(self.policy.policy.observation_space, (gym.spaces.Dict, gym.spaces.Tuple)):
            # The encoded copy is safe from later changes by the application.
            obs = to_wire(obs, self._where)
        self._steps.append(_Step(obs, env_t))
        return completes

    def _complete_step(self) -> bool:
        """Complete the last step with its reward; return whether there was one."""
        if not self._steps or self._steps[-1].action is None:
            return False
        self._steps[-1].reward, self.reward = self.reward, 0.0
        return True

    def add_action(self, decided: ComputedAction, row: int, trained: bool) -> None:
        """Add one row of the policy's answer, the action for the last observation; only count it if not `trained`."""
        part, before = slice(row, row + 1), self.state
        if before is not None:
            self.state = decided.state[part]
        if not trained:
            # The count seeds the generator of the next agent episode.
            self.t += 1
            return
        step = self._steps[-1]
        step.action, step.row, step.state = decided.actions[part], decided.rows[part], before
        step.weights_number = self.policy.number
        if decided.mask is not None:
            step.mask = decided.mask[part]

    def end(self, obs: Any, terminated: bool, env_t: int = 0) -> bool:
        """End the trajectory and return what `observe` does; `obs=None` repeats the last observation."""
        completes = False
        if obs is not None:
            completes = self.observe(obs, env_t)
        elif self._complete_step():
            self._steps.append(_Step(self._steps[-1].obs, env_t))
            completes = True
        self.terminated, self.truncated = terminated, not terminated
        return completes

    def evaluate(self) -> None:
        """Compute log-probabilities of the new actions, before the policy's weights change."""
        new = [step for step in self._steps if step.action is not None and step.logp is None]
        rows, actions = _stacked(new, "row"), _stacked(new, "action")
        if rows is None or actions is None:
            return
        inputs, logp = self.policy.evaluate(
            rows, _stacked(new, "mask"), actions, _stacked(new, "state"), self._where
        )
        for place, step in enumerate(new):
            step.logp = logp[place : place + 1]
            step.inputs = None if inputs is None else inputs[place : place + 1]

    def take_chunk(self, with_env_t: bool = False) -> dict[str, Any] | None:
        """Remove the complete steps and return them as a chunk, None if there is nothing to send.

        With `with_env_t`, the chunk holds env steps, since agents may act at different ones.
        """
        done = [step for step in self._steps if step.reward is not None]
        count = len(done)
        if not done and not (self.over and self.t):
            return None
        self.evaluate()
        shown = self._steps[: count + 1]
        chunk: dict[str, Any] = {
            "obs": self._column([step.obs for step in shown]),
            "actions": [],
            "rewards": np.array([step.reward for step in done], np.float64),
            "t": self.t,
            "is_terminated": self.terminated,
            "is_truncated": self.truncated,
        }
        if with_env_t:
            chunk["env_t"] = np.array([step.env_t for step in shown], np.int32)
        if done:
            chunk["actions"] = self.policy.policy.networks.output.unclipped(
                np.concatenate([step.action for step in done if step.action is not None])
            )
            chunk["weights_seq_no"] = min(step.weights_number for step in done)
            columns = (("action_logp", "logp"), ("action_dist_inputs", "inputs"), ("state_in", "state"))
            for name, field in columns:
                if (column := _stacked(done, field)) is not None:
                    chunk[name] = column
        del self._steps[:count]
        self.t += count
        return chunk

    def _column(self, obs: list[Any]) -> Any:
        space = self.policy.policy.observation_space
        try:
            return stack(obs, space) if isinstance(space, _LEAVES) else obs
        except OutsideSpaceError as error:
            raise ContractError(
                f"{self._where}, observation {error.row} of the last {len(obs)}: {error.why}; {ADVICE}"
            ) from error


class LocalEpisode:
    """One open episode; an untrained one sends nothing.

    `known` says whether the server has heard of it, `lost` whether the server has discarded it. `refused` is the reason
    why the server accepts no more of it, "" otherwise. `make_remote` lets the server play it from its beginning.
    """

    def __init__(
        self,
        actor: LocalActor,
        episode_id: str,
        trained: bool,
        multi: bool,
        make_remote: Callable[[LocalEpisode], RemoteEpisode],
    ) -> None:
        self.episode_id = episode_id
        self.trained = trained
        self.known = self.lost = False
        self.refused = ""
        self._actor = actor
        self._multi = multi
        self._make_remote = make_remote
        self._trajectories: dict[str, LocalTrajectory] = {}
        # Policy by agent, fixed for the episode.
        self._policies: dict[str, LocalPolicy] = {}
        # Length of ended agent episodes, in case the agent returns.
        self._ended_lengths: dict[str, int] = {}
        self._early_rewards: dict[str, float] = {}
        # Rewards of agents that were done and did not return in the next call.
        self._unclaimed: dict[str, float] = {}
        self._done: set[str] = set()
        # Whether the environment ended the episode, None while it is open.
        self._terminated: bool | None = None
        self._has_sent = False
        # Env steps that were begun, whose results are known, and that the server knows.
        self._begun_steps = self._known_steps = self._reported = 0

    @property
    def begun(self) -> bool:
        """Whether an action was chosen here. False if all agents were done before, or the call failed."""
        return any(trajectory.begun for trajectory in self._trajectories.values()) or any(
            self._ended_lengths.values()
        )

    @property
    def over(self) -> bool:
        """Whether the application has ended the episode."""
        return self._terminated is not None

    @property
    def early_rewards(self) -> dict[str, float]:
        """Rewards before the first action, by agent."""
        rewards = dict(self._early_rewards)
        waiting = {agent: trajectory.reward for agent, trajectory in self._trajectories.items()}
        for agent, amount in (*self._unclaimed.items(), *waiting.items()):
            rewards[agent] = rewards.get(agent, 0.0) + amount
        return rewards

    def act(self, observation: Any) -> Any:
        self._check()
        if not self._multi:
            return self._act({SINGLE_AGENT: observation})[SINGLE_AGENT]
        for agent in keyed_by_agent(self._where, "observation", observation):
            if agent not in self._policies:
                check_agent(self._where, agent)
        return self._act(observation)

    def add_returns(self, reward: Any, info: Any, done: Mapping[str, bool] | None) -> None:
        """Add rewards and done flags."""
        for agent, amount in (reward if self._multi else {SINGLE_AGENT: reward}).items():
            trajectory = self._trajectories.get(agent)
            if trajectory is not None and not trajectory.over:
                trajectory.reward += amount
            else:
                self._early_rewards[agent] = self._early_rewards.get(agent, 0.0) + amount
        # This includes agents that are done already or have never add_action.
        self._done |= {agent for agent, flag in (done or {}).items() if flag and agent != ALL}

    def log(self, observation: Any, action: Any) -> None:
        if self.begun:
            raise CallOrderError(
                f"log_action: actions of episode {self.episode_id!r} were chosen by this client itself, expected "
                "log_action before the first get_action where inference_mode='local'; begin the episode with it, or "
                "use inference_mode='remote'"
            )
        self._make_remote(self).log(observation, action)

    def end(self, observation: Any, truncated: bool) -> None:
        self._check()
        if self.trained and not self.begun and any(self.early_rewards.values()):
            # No chunk can hold rewards without an action.
            self._make_remote(self).end(observation, truncated)
            return
        last = {SINGLE_AGENT: observation}
        if self._multi:
            last = dict(
                keyed_by_agent(f"end_episode: episode {self.episode_id!r}", "observation", observation)
            )
        actor = self._actor
        with actor.lock:
            self._terminated, self._known_steps = not truncated, self._begun_steps
            for agent, trajectory in self._trajectories.items():
                if not trajectory.over:
                    obs = last.get(agent)
                    over = not truncated or agent in self._done
                    trajectory.end(
                        None if obs is None else trajectory.policy.as_element(obs), over, self._begun_steps
                    )
            actor.ended(self)

    def chunk(self) -> tuple[Raw, int] | None:
        """Remove the complete steps; return an entry of EPISODES and its env steps, or None."""
        over = self.over
        chunks = {
            agent: chunk
            for agent, trajectory in self._trajectories.items()
            if self.trained and (chunk := trajectory.take_chunk(self._multi)) is not None
        }
        for agent in [agent for agent, trajectory in self._trajectories.items() if trajectory.over]:
            self._ended_lengths[agent] = self._trajectories.pop(agent).t
        if not chunks and not (over and self._has_sent):
            return None
        self._has_sent = True
        steps = sum(len(chunk["rewards"]) for chunk in chunks.values())
        flags = {"is_terminated": self._terminated is True, "is_truncated": self._terminated is False}
        body: dict[str, Any] = {"id": self.episode_id, **flags}
        if not self._multi:
            return to_raw(body | chunks[SINGLE_AGENT]), steps
        # Several agents may act in one env step. The server counts no more of these than there are agent steps; the
        # rest comes with the steps that are not complete.
        steps = min(self._known_steps - self._reported, steps)
        self._reported += steps
        body |= {"agents": chunks, "env_steps": steps}
        if over:
            self._move_to_unclaimed(self._early_rewards)
            body["unclaimed"] = self._unclaimed
        return to_raw(body), steps

    def evaluate(self) -> None:
        """Compute log-probabilities of all new actions, before the weights change."""
        for trajectory in self._trajectories.values():
            trajectory.evaluate()

    @property
    def _where(self) -> str:
        return f"get_action: episode {self.episode_id!r}"

    def lost_error(self) -> EpisodeError:
        """Return the error for an episode that the server has discarded or refused."""
        why = self.refused or "the server has forgotten it, expected this client to reconnect in time"
        return EpisodeError(f"episode {self.episode_id!r}: {why}; start a new one")

    def _check(self) -> None:
        if self.lost or self.refused:
            raise self.lost_error()

    def _act(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        actor = self._actor
        with actor.lock:
            self._known_steps, playing = self._begun_steps, self._trajectories
            waiting, completes = observations, False
            if self._done:
                waiting, completes = self._end_done_agents(observations)
            new = [agent for agent in waiting if (one := playing.get(agent)) is None or one.over]
            if new:
                self._begin(new)
            groups: dict[int, tuple[LocalPolicy, dict[str, Any]]] = {}
            for agent, obs in waiting.items():
                policy = playing[agent].policy
                groups.setdefault(id(policy), (policy, {}))[1][agent] = obs = policy.as_element(obs)
                if self.trained:
                    completes |= playing[agent].observe(obs, self._begun_steps)
            if completes:
                actor.stepped()
            actions: dict[str, Any] = {}
            for policy, by_agent in groups.values():
                actions |= self._decide(policy, by_agent)
            self._begun_steps += 1
            self._done.clear()
            if self._early_rewards:
                acted = playing.keys() | self._ended_lengths.keys()
                self._move_to_unclaimed([agent for agent in self._early_rewards if agent in acted])
            return {agent: actions[agent] for agent in waiting}

    def _decide(self, policy: LocalPolicy, observations: Mapping[str, Any]) -> dict[str, Any]:
        trajectories = [self._trajectories[agent] for agent in observations]
        noise = self._actor.noise(*(trajectory.generator for trajectory in trajectories))
        states = (
            np.concatenate([trajectory.state for trajectory in trajectories]) if policy.state_size else None
        )
        decided = policy.act([*observations.values()], noise, states, self._where)
        for row, trajectory in enumerate(trajectories):
            trajectory.add_action(decided, row, self.trained)
        return dict(zip(observations, decided.answers, strict=True))

    def _end_done_agents(self, observations: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """End the trajectories of agents that are done; return the other observations, and whether steps are complete.

        `_done` stays until every other agent has an action, since a failed call is repeated.
        """
        completes = False
        for agent in self._done:
            obs, trajectory = observations.get(agent), self._trajectories.get(agent)
            if trajectory is None:
                self._ended_lengths.setdefault(agent, 0)
            elif not trajectory.over:
                completes |= trajectory.end(
                    None if obs is None else trajectory.policy.as_element(obs), True, self._begun_steps
                )
        return {agent: obs for agent, obs in observations.items() if agent not in self._done}, completes

    def _move_to_unclaimed(self, agents: Iterable[str]) -> None:
        for agent in list(agents):
            self._unclaimed[agent] = self._unclaimed.get(agent, 0.0) + self._early_rewards.pop(agent)

    def _begin(self, new: Sequence[str]) -> None:
        """Begin trajectories of agents that have none, or whose last one has ended."""
        if not self._trajectories.keys().isdisjoint(new):
            # A message holds one agent episode of each agent.
            self._actor.set_aside(self)
        with self._actor.lock:
            unknown = [agent for agent in new if agent not in self._policies]
            if unknown:
                self._policies |= self._actor.policies_of(self, unknown)
            for agent in new:
                t, policy = self._ended_lengths.get(agent, 0), self._policies[agent]
                generator = ClientGenerator(policy.policy, self._actor.seed, self.episode_id, agent, str(t))
                trajectory = LocalTrajectory(policy, generator, t, f"{self._where}, agent {agent!r}")
                trajectory.reward = self._early_rewards.pop(agent, 0.0)
                self._trajectories[agent] = trajectory
