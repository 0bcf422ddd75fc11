"""An episode that a client plays by itself: it acts with its own copy of the policy and keeps what happened.

`PolicyClient` calls it, `LocalActor` takes chunks of it for the server. An episode of one agent is one of several
with a single seat.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, SINGLE_AGENT, Column
from menv.errors import CallOrderError, ContractError, EpisodeError
from menv.external_env import keyed_by_agent
from menv.inference.network_policy import ComputedAction
from menv.serving.client.client_session import written
from menv.serving.client.local_actor import ClientGenerator, LocalPolicy
from menv.serving.client.policy_client import check_agent
from menv.serving.codec import WireFormat, to_raw
from menv.spaces import OutsideSpaceError, stack

if TYPE_CHECKING:
    from msgspec import Raw

    from menv.serving.client.local_actor import LocalActor


# SEAM menv.serving.client.local_trajectory
# What one agent of a client's own episode saw, did and earned, until the server has it.
#
# `LocalEpisode` keeps one for each agent and cuts off what goes into the next message. Columns are lists
# until then.


_LEAVES = (gym.spaces.Box, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)


class LocalTrajectory:
    """One agent's steps: n complete ones, and perhaps one whose reward is still to come.

    Args:
        policy: Who answers.
        dice: Its draws.
        t: Index of the first step.
        where: Begins the messages of errors.

    Attributes:
        policy: As given; so is `dice`.
        state: What the network remembers before the next step, None without a memory.
        life: What connectors remember of it, None before the first step.
        paid: Earned since the last action.
        t: Index of the first step that is still here.
        terminated: Whether the environment ended the trajectory.
        truncated: Whether it was cut short.
    """

    __slots__ = (
        "_actions", "_dates", "_inputs", "_judged", "_logp", "_masks", "_numbers", "_obs", "_obs_bytes", "_rewards",
        "_rows", "_states", "_where", "dice", "life", "paid", "policy", "state", "t", "terminated", "truncated",
    )  # fmt: skip

    def __init__(self, policy: LocalPolicy, dice: ClientGenerator, t: int, where: str) -> None:
        self.policy, self.dice, self.t, self._where = policy, dice, t, where
        self.state = policy.first_state()
        self.life: Any = None
        self.paid = 0.0
        self.terminated = self.truncated = False
        self._obs: list[Any] = []
        self._obs_bytes = 0
        # The env step of the episode in which each observation was seen.
        self._dates: list[int] = []
        self._rewards: list[float] = []
        self._actions: list[Column] = []
        self._rows: list[Column] = []
        self._masks: list[Column] = []
        self._states: list[Column] = []
        self._numbers: list[int] = []
        self._judged = 0
        self._inputs: list[Column] = []
        self._logp: list[Column] = []

    @property
    def steps(self) -> int:
        """Complete steps that are here."""
        return len(self._rewards)

    @property
    def begun(self) -> bool:
        """Whether there was an action, here or before."""
        return bool(self._actions or self.t)

    @property
    def next_bytes(self) -> int:
        """About how many bytes of a message the next observation will complete, if it is like the last one."""
        return self.policy.step_bytes + self._obs_bytes if len(self._actions) > len(self._rewards) else 0

    @property
    def since(self) -> float:
        """The env step of the first step that is still here; infinity if there is none."""
        return self._dates[0] if self._dates else math.inf

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.terminated or self.truncated

    def observe(self, obs: Any, env_t: int = 0) -> int:
        """Note an observation of an env step, of which a copy is kept.

        Returns about how many bytes of a message the step takes that is complete with it, 0 if none is.

        One in answer to which nothing was done is replaced: the call that brought it failed, and comes again.
        """
        completes, size = self._settle(), self.policy.obs_bytes
        del self._obs[len(self._actions) :], self._dates[len(self._actions) :]
        self._dates.append(env_t)
        if type(obs) is np.ndarray:
            self._obs.append(obs.copy())
        elif isinstance(self.policy.policy.observation_space, (gym.spaces.Dict, gym.spaces.Tuple)):
            # What is written down cannot be changed by the application afterwards.
            raw = written(obs, self._where)
            self._obs.append(raw)
            size = len(memoryview(raw))
        else:
            self._obs.append(obs)
        self._obs_bytes = size
        return self.policy.step_bytes + size if completes else 0

    def _settle(self) -> bool:
        """Complete the last step with what was paid since; return whether there was one."""
        if len(self._actions) == len(self._rewards):
            return False
        self._rewards.append(self.paid)
        self.paid = 0.0
        return True

    def acted(self, decided: ComputedAction, row: int) -> None:
        """Note what was done about the last observation: one row of a decision."""
        part = slice(row, row + 1)
        self._actions.append(decided.actions[part])
        self._rows.append(decided.rows[part])
        self._numbers.append(self.policy.number)
        if decided.mask is not None:
            self._masks.append(decided.mask[part])
        if self.state is not None:
            self._states.append(self.state)
            self.state = decided.state[part]

    def end(self, obs: Any, terminated: bool, env_t: int = 0) -> int:
        """Note that it is over; return what `observe` does.

        Args:
            obs: The last observation; None repeats the one before.
            terminated: Whether the environment ended it.
            env_t: Env step of the episode.
        """
        size = self.next_bytes
        if obs is not None:
            size = self.observe(obs, env_t)
        elif len(self._actions) > len(self._rewards):
            self._obs.append(self._obs[-1])
            self._dates.append(env_t)
            self._settle()
        self.terminated, self.truncated = terminated, not terminated
        return size

    def judge(self) -> None:
        """Note how probable the actions were, before the policy's weights change."""
        first, last = self._judged, len(self._actions)
        if first == last:
            return
        masks = np.concatenate(self._masks[first:]) if self._masks else None
        states = np.concatenate(self._states[first:]) if self._states else None
        rows, actions = np.concatenate(self._rows[first:]), np.concatenate(self._actions[first:])
        inputs, logp = self.policy.judge(rows, masks, actions, states, self._where)
        self._logp.append(logp)
        if inputs is not None:
            self._inputs.append(inputs)
        self._judged = last

    def cut(self, dated: bool = False) -> dict[str, Any] | None:
        """Take off the complete steps, as one chunk for a message; None if there is nothing to tell.

        Args:
            dated: Whether it is to tell when things were seen, because others do not see at the same times.

        Raises:
            ContractError: An observation is outside its space.
        """
        steps = len(self._rewards)
        if not steps and not (self.over and self.t):
            return None
        self.judge()
        chunk: dict[str, Any] = {
            "obs": self._column(self._obs[: steps + 1]),
            "rewards": np.array(self._rewards, np.float64),
            "t": self.t,
            "is_terminated": self.terminated,
            "is_truncated": self.truncated,
        }
        if dated:
            chunk["env_t"] = np.array(self._dates[: steps + 1], np.int32)
        if steps:
            chunk |= self._about_actions(steps)
        else:
            chunk["actions"] = []
        self._forget(steps)
        return chunk

    def _about_actions(self, steps: int) -> dict[str, Any]:
        logp = np.concatenate(self._logp)
        found = {
            "actions": self.policy.outer(np.concatenate(self._actions[:steps])),
            "action_logp": logp[:steps],
            "weights_seq_no": min(self._numbers[:steps]),
        }
        self._logp = [logp[steps:]]
        if self._inputs:
            inputs = np.concatenate(self._inputs)
            found["action_dist_inputs"] = inputs[:steps]
            self._inputs = [inputs[steps:]]
        if self._states:
            found["state_in"] = np.concatenate(self._states[:steps])
        return found

    def _forget(self, steps: int) -> None:
        for column in (
            self._obs,
            self._dates,
            self._actions,
            self._rows,
            self._masks,
            self._states,
            self._numbers,
        ):
            del column[:steps]
        self._rewards.clear()
        self._judged -= steps
        self.t += steps

    def _column(self, obs: list[Any]) -> Any:
        space = self.policy.policy.observation_space
        try:
            return stack(obs, space) if isinstance(space, _LEAVES) else obs
        except OutsideSpaceError as error:
            raise ContractError(
                f"{self._where}, observation {error.row} of the last {len(obs)}: {error.why}; pass observations of the "
                "space that the server was configured with"
            ) from error


class LocalEpisode:
    """One open episode.

    Args:
        actor: Where policies come from and chunks go.
        episode_id: Its id.
        trained: Whether anybody learns from it; if not, nothing of it is sent.
        multi: Whether observations are dicts by agent.

    Attributes:
        trained: As given.
        known: Whether the server has heard of it.
        lost: Whether the server has forgotten it.
        refused: Why the server will hear nothing more of it, "" as long as it does.
    """

    def __init__(self, actor: LocalActor, episode_id: str, trained: bool, multi: bool) -> None:
        self.episode_id = episode_id
        self.trained = trained
        self.known = self.lost = False
        self.refused = ""
        self._actor = actor
        self._multi = multi
        self._seats: dict[str, LocalTrajectory] = {}
        # Who answers for whom, through the whole episode.
        self._policies: dict[str, LocalPolicy] = {}
        # Those whose own trajectory is over; the steps of each, in case it comes back.
        self._left: dict[str, int] = {}
        self._early: dict[str, float] = {}
        # What was paid to agents that were done and did not come back with the next call.
        self._unclaimed: dict[str, float] = {}
        self._done: set[str] = set()
        # Whether the environment ended it, None while it goes on.
        self._terminated: bool | None = None
        self._is_cut = False
        # How many env steps have begun, and of how many of them the server knows.
        self._acts = self._told = 0
        # Env steps of which the server has a row, as long as others may have rows of them.
        self._counted: set[int] = set()

    @property
    def begun(self) -> bool:
        """Whether an action was chosen here: not for agents that were done before, nor where a call has failed."""
        return any(seat.begun for seat in self._seats.values()) or any(self._left.values())

    @property
    def over(self) -> bool:
        """Whether the application has ended it."""
        return self._terminated is not None

    @property
    def only_paid(self) -> bool:
        """Whether somebody was paid, which is to be told, and nobody has acted."""
        return self.trained and not (self.begun or self.lost or self.refused) and any(self.early.values())

    @property
    def early(self) -> dict[str, float]:
        """What was paid before the first action, by agent."""
        paid = dict(self._early)
        for more in (self._unclaimed, {agent: seat.paid for agent, seat in self._seats.items()}):
            for agent, amount in more.items():
                paid[agent] = paid.get(agent, 0.0) + amount
        return paid

    def act(self, observation: Any) -> Any:
        """Return what the policy does; see `PolicyClient.get_action`."""
        self._check()
        if self._multi:
            return self._act_together(observation)
        seat = self._seats.get(SINGLE_AGENT)
        if seat is None:
            self._seat({SINGLE_AGENT: observation})
            seat = self._seats[SINGLE_AGENT]
        actor = self._actor
        with actor.lock:
            if type(observation) is not np.ndarray:
                observation = seat.policy.as_element(observation)
            if self.trained and (size := seat.observe(observation)):
                actor.stepped(size)
            decided = seat.policy.act(
                [observation], actor.noise(seat.dice), seat.state, [seat.life], self._where
            )
            self._note(seat, decided, 0)
        return decided.answers[0]

    def pay(self, reward: Any, info: Any, done: Mapping[str, bool] | None) -> None:
        """Note rewards; see `PolicyClient.log_returns`."""
        if not self._multi:
            seat = self._seats.get(SINGLE_AGENT)
            if seat is not None:
                seat.paid += reward
            else:
                self._early[SINGLE_AGENT] = self._early.get(SINGLE_AGENT, 0.0) + reward
            return
        for agent, amount in reward.items():
            seat = self._seats.get(agent)
            if seat is not None and not seat.over:
                seat.paid += amount
            else:
                self._early[agent] = self._early.get(agent, 0.0) + amount
        # One that is done already, or never acted, is not asked in the next call either.
        self._done |= {agent for agent, flag in (done or {}).items() if flag and agent != ALL}

    def end(self, observation: Any, truncated: bool) -> None:
        """Note that it is over; see `PolicyClient.end_episode`."""
        self._check()
        last = {SINGLE_AGENT: observation}
        if self._multi:
            last = dict(
                keyed_by_agent(f"end_episode: episode {self.episode_id!r}", "observation", observation)
            )
        actor = self._actor
        with actor.lock:
            self._make_room(self._seats)
            self._check()
            self._terminated = not truncated
            for agent, seat in self._seats.items():
                if not seat.over:
                    obs = last.get(agent)
                    over = not truncated or agent in self._done
                    seat.end(None if obs is None else seat.policy.as_element(obs), over, self._acts)
            actor.ended(self)

    def chunk(self) -> tuple[Raw, int] | None:
        """Take off what is complete, as an entry of EPISODES, and the length of it; None if there is nothing."""
        over = self.over
        chunks = {
            agent: chunk
            for agent, seat in self._seats.items()
            if self.trained and (chunk := seat.cut(self._multi)) is not None
        }
        for agent in [agent for agent, seat in self._seats.items() if seat.over]:
            self._left[agent] = self._seats.pop(agent).t
        if not chunks and not (over and self._is_cut):
            return None
        self._is_cut = True
        steps = self._env_steps(chunks, over)
        flags = {"is_terminated": self._terminated is True, "is_truncated": self._terminated is False}
        body: dict[str, Any] = {"id": self.episode_id, **flags}
        body |= {"agents": chunks} if self._multi else chunks[SINGLE_AGENT]
        if over and self._multi:
            self._write_off(self._early)
            body["unclaimed"] = self._unclaimed
        if self._multi:
            body["env_steps"] = steps
        return to_raw(body, WireFormat.MSGPACK), steps

    def _env_steps(self, chunks: Mapping[str, Any], over: bool) -> int:
        """Return how many env steps a chunk adds: fewer than its agents have steps where these take turns."""
        lengths = [len(chunk["rewards"]) for chunk in chunks.values()]
        if not self._multi:
            return sum(lengths)
        # Those of which a row is here count at once: nobody may have a row left for them in the last chunk.
        dates = [
            date for chunk in chunks.values() for date in chunk["env_t"][: len(chunk["rewards"])].tolist()
        ]
        counted = self._counted.union(dates)
        fresh = len(counted) - len(self._counted)
        oldest = min((seat.since for seat in self._seats.values()), default=self._acts)
        self._counted = {date for date in counted if date >= oldest}
        # What came of the last actions is not known before the end.
        known = min(self._acts - (not over) - self._told, sum(lengths))
        steps = max(0, min(max(fresh, known), self._acts - self._told))
        self._told += steps
        return steps

    def judge(self) -> None:
        """Note how probable all actions were, before the weights change."""
        for seat in self._seats.values():
            seat.judge()

    def interactive(self) -> None:
        """Check that the episode can still be one whose actions are told one by one.

        Raises:
            CallOrderError: Actions have been chosen here.
        """
        if self.begun:
            raise CallOrderError(
                f"log_action: actions of episode {self.episode_id!r} were chosen by this client itself, expected "
                "log_action before the first get_action where inference_mode='local'; begin the episode with it, or "
                "use inference_mode='remote'"
            )

    @property
    def _where(self) -> str:
        return f"get_action: episode {self.episode_id!r}"

    def gone(self) -> EpisodeError:
        """Return the error for an episode of which the server hears nothing more."""
        why = self.refused or "the server has forgotten it, expected this client back in time"
        return EpisodeError(f"episode {self.episode_id!r}: {why}; start a new one")

    def _check(self) -> None:
        if self.lost or self.refused:
            raise self.gone()

    def _act_together(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        actor = self._actor
        for agent in keyed_by_agent(self._where, "observation", observations):
            if agent not in self._policies:
                check_agent(self._where, agent)
        with actor.lock:
            self._make_room([*self._done, *observations])
            waiting, size = self._after_ends(observations)
            self._seat(waiting)
            waiting = {agent: self._seats[agent].policy.as_element(obs) for agent, obs in waiting.items()}
            if self.trained:
                size += sum(self._seats[agent].observe(obs, self._acts) for agent, obs in waiting.items())
                if size:
                    actor.stepped(size)
            groups: dict[int, tuple[LocalPolicy, list[str]]] = {}
            for agent in waiting:
                policy = self._seats[agent].policy
                groups.setdefault(id(policy), (policy, []))[1].append(agent)
            actions: dict[str, Any] = {}
            for policy, agents in groups.values():
                actions |= self._decide(policy, agents, waiting)
            self._acts += 1
            self._done.clear()
            self._write_off([agent for agent in self._early if agent in self._seats or agent in self._left])
            return {agent: actions[agent] for agent in waiting}

    def _decide(
        self, policy: LocalPolicy, agents: list[str], observations: Mapping[str, Any]
    ) -> dict[str, Any]:
        seats = [self._seats[agent] for agent in agents]
        noise = self._actor.noise(*(seat.dice for seat in seats))
        states = np.concatenate([seat.state for seat in seats]) if policy.state_size else None
        lives = [seat.life for seat in seats]
        decided = policy.act([observations[agent] for agent in agents], noise, states, lives, self._where)
        for row, seat in enumerate(seats):
            self._note(seat, decided, row)
        return dict(zip(agents, decided.answers, strict=True))

    def _note(self, seat: LocalTrajectory, decided: Any, row: int) -> None:
        if decided.lives is not None:
            seat.life = decided.lives[row]
        if self.trained:
            seat.acted(decided, row)
            return
        # Nothing is kept of the step, but where the draws of another life begin.
        seat.t += 1
        if seat.state is not None:
            seat.state = decided.state[row : row + 1]

    def _make_room(self, agents: Iterable[str]) -> None:
        """Put what is complete in a message of its own where all that agents complete next is too much beside it."""
        if self.trained:
            seats = [self._seats[agent] for agent in set(agents) if agent in self._seats]
            self._actor.make_room(self, sum(seat.next_bytes for seat in seats))

    def _after_ends(self, observations: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """End the trajectories of agents that are done.

        Returns:
            The observations of the others, and about how many bytes of a message were completed.

        A call that failed comes again: who is done stays so until everybody else has an action.
        """
        size = 0
        for agent in self._done:
            obs, seat = observations.get(agent), self._seats.get(agent)
            if seat is None:
                self._left.setdefault(agent, 0)
            elif not seat.over:
                size += seat.end(None if obs is None else seat.policy.as_element(obs), True, self._acts)
        waiting = {agent: obs for agent, obs in observations.items() if agent not in self._done}
        if any(agent in self._seats and self._seats[agent].over for agent in waiting):
            # One message holds one life of each agent.
            self._actor.set_aside(self)
        return waiting, size

    def _write_off(self, agents: Iterable[str]) -> None:
        for agent in list(agents):
            self._unclaimed[agent] = self._unclaimed.get(agent, 0.0) + self._early.pop(agent)

    def _seat(self, observations: Mapping[str, Any]) -> None:
        new = [agent for agent in observations if agent not in self._seats]
        if not new:
            return
        with self._actor.lock:
            unknown = [agent for agent in new if agent not in self._policies]
            if unknown:
                self._policies |= self._actor.policies_of(self, unknown)
            for agent in new:
                t, policy = self._left.get(agent, 0), self._policies[agent]
                dice = ClientGenerator(policy.policy, self._actor.seed, self.episode_id, agent, str(t))
                seat = LocalTrajectory(policy, dice, t, f"{self._where}, agent {agent!r}")
                seat.paid = self._early.pop(agent, 0.0)
                self._seats[agent] = seat
