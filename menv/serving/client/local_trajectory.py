"""What one agent of a client's own episode saw, did and earned, until the server has it.

`LocalEpisode` keeps one for each agent and cuts off what goes into the next message. Columns are lists until then.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from menv.errors import ContractError
from menv.loop.net_policy import Decided
from menv.segments import Column
from menv.serving.client.client_values import written
from menv.serving.client.local_policy import Dice, LocalPolicy
from menv.spaces import OutsideSpaceError, stack

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

    def __init__(self, policy: LocalPolicy, dice: Dice, t: int, where: str) -> None:
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

    def acted(self, decided: Decided, row: int) -> None:
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
