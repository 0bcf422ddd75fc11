"""A policy that a client holds: it acts, and says of what it did how probable that was.

`LocalActor` fetches one and gives it new weights. It knows no episodes and no messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from menv import draws
from menv.connectors.action_output import ActionOutput
from menv.connectors.kept_lives import keepers, predecessors
from menv.errors import ContractError
from menv.loop.net_policy import Decided, NetPolicy
from menv.loop.packed_bundle import policy_from_bytes, unpack_weights
from menv.nested import leaves
from menv.segments import Column
from menv.spaces import OutsideSpaceError

_AHEAD = 64
_BYTES_BESIDE = 64

News = NetPolicy | dict[str, Any]
"""A whole policy, or the weights of one."""


def unpacked(weights: bytes | None, bundle: bytes | None) -> News:
    """Return the policy in a bundle, or without one the weights.

    Raises:
        ConfigError: They are damaged.
    """
    return unpack_weights(weights or b"") if bundle is None else policy_from_bytes(bundle)


class Dice:
    """Draws for one agent of one episode: the same for the same seed and ids, whoever else acts in between.

    Args:
        policy: Whose noise it is.
        seed: Of the client.
        ids: Of episode and agent.
    """

    __slots__ = ("_at", "_block", "_draw", "_key", "_next", "_width")

    def __init__(self, policy: NetPolicy, seed: int, *ids: str) -> None:
        noise = policy.networks.noise
        self._draw, self._width = noise.draw, noise.width
        self._key = np.uint64(draws.key(seed, draws.ACTION, *map(draws.stable_hash, ids)))
        self._next, self._at = 0, _AHEAD
        self._block: Column = np.zeros((0, noise.width), np.float32)

    def throw(self) -> Column:
        """Return [1, width] fresh draws."""
        at = self._at
        if at == _AHEAD:
            steps = np.arange(self._next, self._next + _AHEAD)
            self._block = self._draw(np.full(_AHEAD, self._key), steps, self._width)
            self._next += _AHEAD
            at = 0
        self._at = at + 1
        return self._block[at : at + 1]


class LocalPolicy:
    """One policy and the number of its weights.

    Args:
        blob: What `pack_bundle` returned.
        number: The sequence number of its weights.

    Attributes:
        policy: The policy.
        number: As given, and of each set of weights that came after.
        state_size: S, numbers in the state of a recurrent network.
        obs_bytes: About what an observation takes in a message, where its space is no Dict or Tuple.
        step_bytes: About what a step takes in a message beside its observation.

    Raises:
        ConfigError: The bundle is damaged, or newer than this version.
        ContractError: The policy cannot act here.
    """

    def __init__(self, blob: bytes, number: int) -> None:
        self.policy = policy_from_bytes(blob)
        self.number = number
        networks = self.policy.networks
        self.state_size = sum(networks.state_sizes)
        self.obs_bytes = _bytes_of(networks.observation_space)
        # Parts of an action may be arrays of their own, with a few words about each.
        beside = _bytes_of(networks.action_space) + _BYTES_BESIDE * len(leaves(networks.action_space))
        head = networks.backend.head
        inputs = 0 if head.by_worth else head.inputs
        self.step_bytes = beside + np.dtype(np.float32).itemsize * (self.state_size + inputs)
        self._look()
        if self.policy.lives_stay:
            raise ContractError(
                f"policy {self.policy.policy_id!r}: its connectors remember lives and do not tell what, expected "
                "tells_lives of all that keep some; use inference_mode='remote'"
            )

    def take(self, news: News, number: int) -> bool:
        """Use what `unpacked` returned; return False where it is a policy of another network, which has this id now.

        Raises:
            ConfigError: They are weights of another network.
        """
        if not isinstance(news, NetPolicy):
            self.policy.set_weights(news)
        elif _form(news) == _form(self.policy):
            self.policy = news
            self._look()
        else:
            return False
        self.number = number
        return True

    def _look(self) -> None:
        self.wants = "weights" if self.policy.plain else "bundle"
        self._keepers = [type(leaf) for leaf in keepers(self.policy.agent_connectors)]

    def as_element(self, obs: Any) -> Any:
        """Return an observation that came as a list of numbers as an array of its space."""
        space = self.policy.observation_space
        if isinstance(obs, (list, tuple)) and isinstance(space, gym.spaces.Box):
            return np.array(obs, space.dtype)
        return obs

    def first_state(self) -> Column | None:
        """Return [1, S] of a recurrent network before its first step; None of any other."""
        return np.zeros((1, self.state_size), np.float32) if self.state_size else None

    def act(
        self,
        obs: Sequence[Any],
        noise: Column | None,
        states: Column | None,
        lives: Sequence[Any],
        where: str,
    ) -> Decided:
        """Return what the policy does about R observations.

        Args:
            obs: R observations.
            noise: [R, width]; None takes the most likely actions.
            states: [R, S] or None.
            lives: Of each row the life that an answer before came with, None of a new one.
            where: Begins the message of an error.

        Raises:
            ContractError: An observation has another structure, shape or dtype than the space says, or the network
                gives no numbers for it.
        """
        try:
            decided = self.policy.decide(obs, noise, states, [self._as_now(life) for life in lives])
        except OutsideSpaceError as error:
            raise ContractError(
                f"{where}: {error.mended('pass observations of the space that the server was configured with')}"
            ) from error
        except ContractError as error:
            raise ContractError(f"{where}: {error}") from error
        if decided.lives is None:
            return decided
        return decided._replace(lives=[(self._keepers, life) for life in decided.lives])

    def _as_now(self, life: Any) -> list[Any] | None:
        """Return what connectors that are here now remember of a life, None of one that was not there then."""
        if life is None:
            return None
        kinds, memories = life
        if kinds is self._keepers:
            return list(memories)
        return [None if place is None else memories[place] for place in predecessors(kinds, self._keepers)]

    def judge(
        self, rows: Column, mask: Column | None, actions: Column, states: Column | None, where: str
    ) -> tuple[Column | None, Column]:
        """Return how probable N actions were, in terms of the environment's actions.

        Returns:
            [N, K] inputs of the distribution, None where these are the worth of choices; [N] log-probabilities.

        Raises:
            ContractError: A row is outside the observation space.
        """
        networks = self.policy.networks
        if self.policy.plain and networks.preprocess is not None:
            bad = networks.preprocess.why_bad_row(rows)
            if bad is not None:
                raise ContractError(
                    f"{where}, observation {bad[0]} of the last {len(rows)}: {bad[1]}; pass observations of the space "
                    "that the server was configured with"
                )
        found = networks.backend.evaluate(self.policy.index, rows, mask, actions, states)
        output: ActionOutput = networks.output
        logp = found.logp - np.float32(output.log_scale.sum())
        if networks.backend.head.by_worth:
            return None, logp
        return output.outer_inputs(found.dist_inputs), logp

    def outer(self, actions: Column) -> Any:
        """Return N network actions as those of the environment, those of a Box not clipped."""
        return self.policy.networks.output.unclipped(actions)


def _form(policy: NetPolicy) -> Any:
    shapes = {name: np.shape(value) for name, value in policy.get_weights().items()}
    return policy.observation_space, policy.action_space, policy.networks.state_sizes, shapes


def _bytes_of(space: gym.Space[Any]) -> int:
    return sum(
        _BYTES_BESIDE
        if leaf.shape is None or leaf.dtype is None
        else int(np.prod(leaf.shape)) * leaf.dtype.itemsize + 1
        for leaf in leaves(space)
    )
