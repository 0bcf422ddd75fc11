"""Random schedules of agents, and the trajectories that come out of a sampler fed with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from menv import to_base_env
from menv.algorithms import ModelConfig, PPOConfig, PPORecipe
from menv.algorithms.training.network_group_builder import build_groups
from menv.algorithms.training.sequences import state_before
from menv.base_env import BaseEnv, Ready
from menv.inference.network_policy import NetworkGroup
from menv.metrics import Metrics
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec
from menv.sample_batch import MultiAgentBatch
from menv.sampling.custom_policies import CustomPolicyStrategy
from menv.sampling.fragment_limit import ExternalFragmentLimit, FragmentLimit, WholeEpisodeLimit
from menv.sampling.policy_group import NetworkStrategy, PolicyGroup
from menv.sampling.sampler import Sampler
from tests.contract.scripted import ACTIONS, AGENTS, OBS, Moment, Seen, all_seen, seen

# One agent's rewards are whole multiples of its unit, so that a sum over agents can be read apart again.
UNITS = {agent: 128.0**number for number, agent in enumerate(AGENTS[:3])}
_GRACE = 4

# Made once: hypothesis takes longer to understand a strategy than to draw from it.
_FATES = st.tuples(*[st.sampled_from(["waits", "waits", "absent", "ends", "cut"])] * 3)
_SOME = st.sets(st.sampled_from("abc"))
_PAYS = st.dictionaries(st.sampled_from("abc"), st.integers(-1, 2))
_WAYS = st.sampled_from(["terminated", "truncated"])
# A schedule is short enough to be read as it was found; making it shorter takes minutes.
as_found = settings(
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def moments(draw: st.DrawFn, first: bool = False, last: bool = False) -> Moment:
    """One env step: who waits, who is paid, who ends, with or without a final observation."""
    fates = dict(zip("abc", draw(_FATES), strict=True))
    if first:
        fates = {agent: fate if fate == "waits" else "absent" for agent, fate in fates.items()}
    chosen = {fate: "".join(agent for agent in "abc" if fates[agent] == fate) for fate in fates.values()}
    gone = set(chosen.get("ends", "") + chosen.get("cut", ""))
    final = "" if first else "".join(sorted(gone & draw(_SOME)))
    pays = draw(_PAYS)
    return Moment(
        chosen.get("waits", ""),
        {} if first else {agent: number * UNITS[agent] for agent, number in pays.items()},
        chosen.get("ends", ""),
        chosen.get("cut", ""),
        final,
        draw(_WAYS) if last else "",
    )  # fmt: skip


_FIRST, _MIDDLE, _LAST = moments(first=True), st.lists(moments(), max_size=7), moments(last=True)


@st.composite
def episodes(draw: st.DrawFn) -> list[Moment]:
    middle = draw(_MIDDLE)
    somebody = Moment("a")  # every episode asks somebody at least once
    return [draw(_FIRST), *middle, somebody, draw(_LAST)]


scripts = st.lists(episodes(), min_size=1, max_size=3)


class Tap(BaseEnv):
    """A `BaseEnv` of one's own: passes everything on and notes what no action could own."""

    returns_table = True

    def __init__(self, inner: BaseEnv) -> None:
        self.inner = inner
        self.observation_space, self.action_space = inner.observation_space, inner.action_space
        self.unclaimed: Counter[str] = Counter()
        self.episodes = 0

    def poll(self, timeout: float | None = None) -> Ready:
        ready: Ready = self.inner.poll(timeout)
        self.episodes += len(ready.episodes)
        for one in ready.unclaimed:
            self.unclaimed[str(one.agent_id)] += int(one.reward)
        return ready

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.inner.send_actions(slots, actions)

    def held_rewards(self) -> dict[Any, dict[Any, float]]:
        return self.inner.held_rewards()


class Drawn(Policy):
    """A policy of one's own that draws from the sampler's numbers alone."""

    def answer(self, obs_batch: Any, row_draws: Any, explore: Any, episodes: Any) -> list[int]:
        assert [episode.episode_id >= 0 for episode in episodes] == [True] * len(obs_batch)
        return [int(number) for number in row_draws.uniforms(1)[:, 0] * 4]


@lru_cache(maxsize=2)
def _networks(kind: str) -> NetworkGroup:
    model = ModelConfig(use_lstm=True, lstm_cell_size=8) if kind == "recurrent" else ModelConfig()
    config = PPOConfig(env="unused", inference="onnx", model=model)
    spec = PolicySpec(observation_space=OBS, action_space=ACTIONS)
    _, (built,) = build_groups(
        dict.fromkeys(("even", "odd"), spec), dict.fromkeys(("even", "odd"), config),
        dict.fromkeys(("even", "odd"), PPORecipe()), 3,
    )  # fmt: skip
    return built.networks


def policy_group(kind: str, policies: Sequence[str] = ("even", "odd")) -> PolicyGroup:
    """Return the policies "even" and "odd": networks, with a memory or without, or of one's own."""
    if kind == "own":
        return PolicyGroup(
            CustomPolicyStrategy(policies, [Drawn(OBS, ACTIONS) for _ in policies], OBS, ACTIONS)
        )
    networks = _networks(kind)
    own = [networks.connectors[networks.policy_ids.index(policy)] for policy in policies]
    return PolicyGroup(NetworkStrategy(replace(networks, policy_ids=list(policies), connectors=own)))


def sampler(
    base_env: BaseEnv, kind: str, length: int, seed: int = 0, *, first_index: int = 0, mapping: Any = None,
    metrics: Metrics | None = None, limit: Any = FragmentLimit, **quota: Any,
) -> Sampler:  # fmt: skip
    """Return a sampler whose fragments have so many steps; "b" and "d" are odd unless a mapping says otherwise."""
    mapping = mapping or PolicyMap(
        ["even", "odd"], lambda agent_id: "odd" if agent_id in ("b", "d") else "even"
    )
    return Sampler(
        to_base_env(base_env), mapping, [policy_group(kind, list(mapping.specs))], limit(length, **quota),
        metrics=metrics or Metrics(), seed=seed, first_index=first_index,
    )  # fmt: skip


def sampler_of_callers(base_env: BaseEnv, kind: str, length: int, **quota: Any) -> tuple[Sampler, Any]:
    """Return a sampler of applications that call, and its limit."""
    limit = ExternalFragmentLimit(length, **quota)
    return sampler(base_env, kind, length, limit=lambda _: limit), limit


def sampler_of_whole_episodes(base_env: BaseEnv, length: int, **settings: Any) -> Sampler:
    """Return a sampler whose fragments hold whole episodes."""
    return sampler(base_env, "networks", length, limit=WholeEpisodeLimit, **settings)


class Row(NamedTuple):
    """One released row."""

    at: Seen
    obs: bytes
    action: int
    reward: float
    flags: tuple[bool, bool]
    new_obs: bytes
    t: int
    eps_id: int


def trajectories(batches: Sequence[MultiAgentBatch]) -> dict[Any, list[Row]]:
    """Return the rows of each (world, episode, agent, life), in the order in which they came.

    Raises:
        AssertionError: A piece mixes lives, or its derived columns do not fit its rows.
    """
    found: dict[Any, list[Row]] = {}
    for batch in batches:
        for policy_id, part in batch.policy_batches.items():
            for piece in part.split_by_episode():
                at = check_piece(policy_id, piece)
                columns = [piece[name].tolist() for name in ("actions", "rewards", "t", "eps_id")]
                flags = zip(piece["terminateds"].tolist(), piece["truncateds"].tolist(), strict=True)
                found.setdefault(at[0][:4], []).extend(
                    Row(one, obs.tobytes(), action, reward, both, new.tobytes(), t, eps_id)
                    for one, obs, new, both, action, reward, t, eps_id in zip(
                        at, piece["obs"], piece["new_obs"], flags, *columns, strict=True
                    )
                )
    return found


def check_piece(policy_id: str, piece: Any) -> list[Seen]:
    """Check that one piece of a trajectory is of one life and that its columns agree; return what its rows saw."""
    (length,) = piece.segments.lengths
    assert piece.count == length > 0
    at = all_seen(piece["obs"])
    lives = {one[:4] for one in at}
    assert len(lives) == 1, f"a piece mixes lives {lives}"
    assert policy_id == ("odd" if lives.pop()[2] in "bd" else "even")
    for name in ("eps_id", "agent_index", "env_id", "unroll_id"):
        assert len(set(piece[name].tolist())) == 1
    assert piece["t"].tolist() == list(range(piece["t"][0], piece["t"][0] + length))
    for shifted, name in (("new_obs", "obs"), ("prev_actions", "actions"), ("prev_rewards", "rewards")):
        before, after = piece[name], piece[shifted]
        one, other = (after[:-1], before[1:]) if name == "obs" else (after[1:], before[:-1])
        assert np.array_equal(one, other), f"{shifted} {one} differ from {name} {other}"
    # What the environment says of the step that an action caused names the step of the observation after it.
    infos: list[dict[str, int]] = [{"at": one.step} for one in all_seen(piece["new_obs"])]
    if piece.segments.final_missing[0]:
        infos[-1] = {}
    assert piece["infos"].tolist() == infos
    assert not piece["terminateds"][:-1].any()
    assert not piece["truncateds"][:-1].any()
    return at


def check_memory(batches: Sequence[MultiAgentBatch]) -> int:
    """Check that each life began with nothing to remember and went on from the state after its row before.

    Returns:
        How many rows remember something.
    """
    backend = _networks("recurrent").backend
    after: dict[Any, Any] = {}
    remembering = 0
    for batch in batches:
        for policy_id, part in batch.policy_batches.items():
            for obs, state in zip(part["obs"], state_before(part), strict=True):
                life = seen(obs)[:4]
                wanted = after.get(life, np.zeros_like(state))
                np.testing.assert_array_equal(state, wanted)
                remembering += bool(state.any())
                decision = backend.decide(
                    obs[None], None, None, ["even", "odd"].index(policy_id), state[None]
                )
                assert decision.state is not None
                after[life] = decision.state[0]
    return remembering


def paid_in(batches: Sequence[MultiAgentBatch]) -> Counter[str]:
    """Return the rewards in the batches, by agent."""
    total: Counter[str] = Counter()
    for batch in batches:
        for part in batch.policy_batches.values():
            for one, reward in zip(all_seen(part["obs"]), part["rewards"].tolist(), strict=True):
                total[one.agent] += int(reward)
    return total


def by_agent(total: float) -> dict[str, int]:
    """Read a sum of several agents' rewards apart again."""
    rest, found = int(total), {}
    for agent, unit in UNITS.items():
        digit = (rest // int(unit) + 64) % 128 - 64
        found[agent] = digit * int(unit)
        rest -= digit * int(unit)
    assert rest == 0
    return found


def same(first: Mapping[Any, list[Row]], second: Mapping[Any, list[Row]]) -> None:
    """Check that two runs hold the same trajectories."""
    assert set(first) == set(second)
    for life, rows in first.items():
        assert rows == second[life], f"{life} differs"
