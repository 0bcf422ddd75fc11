"""How long a fragment is: numbers counted by hand, and those of the classic system's own tests."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

from menv import RandomPolicy, to_base_env
from menv.algorithms import PPO
from menv.multi_agent_env import AgentDict, StepDicts
from menv.policy_map import PolicyMap
from menv.sample_batch import MultiAgentBatch, SampleBatch, TrajectorySlices
from menv.sampling import crash_record
from menv.sampling.crash_record import CrashRecorder
from menv.sampling.custom_policies import CustomPolicyStrategy
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.sampler import Sampler
from tests.contract.scripted import SOLO, SoloGym
from tests.inside import base_env
from tests.sampling.reference_envs import RoundRobin, Together
from tests.worlds import Alone, Several


def policy_group(policy_ids: list[str], observation_space: Any, action_space: Any) -> PolicyGroup:
    policies = [RandomPolicy(observation_space, action_space) for _ in policy_ids]
    return PolicyGroup(CustomPolicyStrategy(policy_ids, policies, observation_space, action_space))


def sampler(env: Any, make: Any, num_envs: int, length: int, **settings: Any) -> Sampler:
    spaces = (env.observation_space, env.action_space)
    mapping = PolicyMap(["p0", "p1"], lambda agent: f"p{agent % 2}" if isinstance(agent, int) else "p0")
    group = policy_group(["p0", "p1"], *spaces)
    return Sampler(to_base_env(env, make, num_envs), mapping, [group], FragmentLimit(length, **settings))


def together(num_envs: int, length: int, *, agents: int = 5, episode: int = 25, **settings: Any) -> Sampler:
    def make(index: int = 0) -> Together:
        return Together(agents, episode)

    return sampler(make(), make, num_envs, length, **settings)


def rows(batch: MultiAgentBatch) -> dict[str, int]:
    return {policy: part.count for policy, part in batch.policy_batches.items()}


def test_five_agents_that_act_together_give_150_and_100_rows_in_50_env_steps() -> None:
    batch = together(1, 50).sample()
    assert batch.count == batch.env_steps() == 50
    assert rows(batch) == {"p0": 150, "p1": 100}
    assert batch.agent_steps() == 250
    assert batch["p0"]["t"].tolist() == [*range(25)] * 6
    assert batch["p0"]["terminateds"].sum() == 6
    assert batch["p0"]["rewards"].sum() == 150.0


def test_round_robin_agents_are_paid_with_their_next_turn() -> None:
    loop = sampler(RoundRobin(), None, 1, 50)
    loop.policy_map = PolicyMap(["p0", "p1"], lambda agent: "p0")
    batch = loop.sample()
    assert batch.count == 50
    # The first episode takes 28 env steps and has 5 x 5 rows. In the 22 of the second one agents 0, 1 and 2
    # have learnt what 4 actions earned, agents 3 and 4 what 3 did.
    assert rows(batch) == {"p0": 25 + 3 * 4 + 2 * 3}
    pieces = batch["p0"].split_by_episode()
    first = [piece for piece in pieces if piece["terminateds"].any()]
    assert sorted(piece["agent_index"][0] for piece in first) == [0, 1, 2, 3, 4]
    for piece in first:
        assert piece["obs"].argmax(1).tolist() == piece["t"].tolist() == [0, 1, 2, 3, 4]
        assert piece["rewards"].tolist() == [100, 100, 100, 100, 0]
        assert piece["terminateds"].tolist() == [False] * 4 + [True]
        # The last agent never sees its end: its last observation is repeated, and marked.
        last = 4 if piece.segments.final_missing[0] else 5
        assert piece["new_obs"].argmax(1).tolist() == [1, 2, 3, 4, last]
    assert sum(bool(piece.segments.final_missing[0]) for piece in first) == 1
    second = sorted(piece["rewards"].tolist() for piece in pieces if not piece["terminateds"].any())
    assert second == [[100] * 3] * 2 + [[100] * 4] * 3


def test_held_rows_come_with_the_next_fragment() -> None:
    loop = sampler(RoundRobin(), None, 1, 5)
    counts = [loop.sample().agent_steps() for _ in range(4)]
    # After 5 env steps only agent 0 has had a second turn; then one agent a step has.
    assert counts == [1, 5, 5, 5]


class Telling(Together):
    """Says in each info whose it is and after how many steps."""

    def step(self, action_dict: AgentDict) -> StepDicts:
        obs, rewards, terminateds, truncateds, _ = super().step(action_dict)
        infos = {agent: {"of": agent, "at": self.at} for agent in self.possible_agents}
        return obs, rewards, terminateds, truncateds, infos


def test_each_row_has_the_info_of_its_own_agent_and_step() -> None:
    env = Telling(5, 7)
    spaces = (gym.spaces.Discrete(2), gym.spaces.Discrete(2))
    groups = [policy_group([name], *spaces) for name in ("p0", "p1")]
    mapping = PolicyMap(["p0", "p1"], lambda agent: f"p{agent % 2}")
    loop = Sampler(to_base_env(env, lambda _: Telling(5, 7), 2), mapping, groups, FragmentLimit(5))
    for _ in range(4):
        for part in loop.sample().policy_batches.values():
            told = [(info["of"], info["at"]) for info in part["infos"]]
            assert told == list(zip(part["agent_index"].tolist(), (part["t"] + 1).tolist(), strict=True))


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_rows_have_the_same_infos_if_each_sub_environment_has_a_separate_dict(mode: AutoresetMode) -> None:
    told = []
    for listed in (False, True):
        makers = [lambda world=world: SoloGym(SOLO, world) for world in range(3)]
        env: Any = SyncVectorEnv(makers, autoreset_mode=mode)
        base = to_base_env(DictInfoToList(env) if listed else env)
        loop = sampler(base, None, 1, 9)
        told.append([dict(info) for _ in range(2) for info in loop.sample()["p0"]["infos"]])
    assert told[0] == told[1]


@pytest.mark.parametrize("listed", [False, True])
def test_the_first_info_of_an_episode_tells_nothing_of_the_end_before(listed: bool) -> None:
    told = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        env: Any = SyncVectorEnv([lambda: SoloGym(SOLO)] * 2, autoreset_mode=mode)
        base = to_base_env(DictInfoToList(env) if listed else env)
        rows, ends = [], []
        for _ in range(9):
            ready = base.poll()
            rows.append([dict(info) for info in ready.infos or [{}, {}]])
            ends += [dict(end.info) for end in ready.ended]
            base.send_actions(ready.slots, [0] * len(ready.slots))
        assert ends
        told.append((rows, ends))
    assert told[0] == told[1]


@pytest.mark.parametrize("num_envs", [1, 3, 40])
@pytest.mark.parametrize("length", [1, 6, 10])
def test_a_fragment_holds_exactly_its_env_steps_of_every_sub_environment(num_envs: int, length: int) -> None:
    loop = together(num_envs, length, agents=2, episode=4)
    for _ in range(5):
        assert loop.sample().env_steps() == num_envs * length
    assert loop.base_env.poll().env_steps.tolist() == [5 * length] * num_envs
    assert loop.env_steps == 5 * length * num_envs
    assert loop.agent_steps == 2 * loop.env_steps


def test_complete_episodes_run_on_to_the_end_of_an_episode() -> None:
    loop = together(2, 6, agents=3, episode=4, batch_mode="complete_episodes")
    for _ in range(3):
        batch = loop.sample()
        assert batch.env_steps() == 2 * 8
        assert batch.agent_steps() == 2 * 8 * 3
        assert batch["p0"]["t"].tolist() == [0, 1, 2, 3] * 8
        assert batch["p0"]["terminateds"].sum() == 8
    assert loop.held_rewards() == 0


def test_complete_episodes_of_different_lengths_end_each_at_its_own_boundary() -> None:
    lengths = [3, 5, 12]
    loop = sampler(
        Alone(length=3), lambda index: Alone(length=lengths[index]), 3, 10, batch_mode="complete_episodes"
    )
    for _ in range(2):
        # 4 episodes of 3, 2 of 5, 1 of 12.
        batch = loop.sample()
        assert batch.env_steps() == 12 + 10 + 12
        assert sorted(batch["p0"].segments.lengths.tolist()) == [3, 3, 3, 3, 5, 5, 12]


@pytest.mark.parametrize(("length", "steps"), [(5, 1), (6, 2), (10, 2), (11, 3)])
def test_agent_steps_are_checked_after_each_env_step(length: int, steps: int) -> None:
    loop = together(2, length, count_steps_by="agent_steps")
    batch = loop.sample()
    # 5 agents a step; what an action earned comes with the row after it, which the last poll has brought.
    assert batch.env_steps() == 2 * steps
    assert loop.agent_steps == 2 * steps * 5
    assert batch.agent_steps() == 2 * (steps * 5)


def test_agent_steps_and_complete_episodes_go_together() -> None:
    loop = together(1, 21, episode=4, batch_mode="complete_episodes", count_steps_by="agent_steps")
    assert loop.sample().env_steps() == 8


def test_sub_environments_of_different_speed_get_equal_shares() -> None:
    loop = sampler(Alone(length=3), lambda index: Alone(length=3 + index), 4, 10)
    batch = loop.sample()
    assert batch.env_steps() == 40
    assert np.bincount(batch["p0"]["env_id"]).tolist() == [10] * 4


@pytest.mark.parametrize(
    ("fragment", "batch_size", "envs", "steps"),
    [("auto", 100, 4, 100), ("auto", 10, 4, 12), (5, 100, 4, 100), (30, 100, 4, 120)],
)
def test_a_train_batch_is_made_of_whole_fragments(
    fragment: Any, batch_size: int, envs: int, steps: int
) -> None:
    config = {
        "rollout_fragment_length": fragment, "train_batch_size": batch_size, "num_envs_per_worker": envs,
        "num_sgd_iter": 1
    }  # fmt: skip
    with PPO(env=lambda context: Alone(length=7), config=config) as algorithm:
        result = algorithm.train()
        assert result["num_env_steps_sampled_this_iter"] == result["num_env_steps_sampled"] == steps
        assert result["num_env_steps_trained"] == steps
        result = algorithm.train()
        assert (result["num_env_steps_sampled"], result["training_iteration"]) == (2 * steps, 2)


def test_a_share_of_rows_is_full_once_the_last_answer_has_had_its_effect() -> None:
    quota = FragmentLimit(4, count_steps_by="agent_steps")
    env_steps = np.zeros(2, np.int64)
    quota.begin(env_steps)
    for step in range(2):
        assert quota.closed(env_steps) is None
        quota.count(np.array([0, 0, 1, 1]))
        env_steps = env_steps + (1 if step == 0 else np.array([1, 0]))
    # Both have 4 answered rows; the result of the second one's last answers is still under way.
    closed = quota.closed(env_steps)
    assert closed is not None
    assert closed.tolist() == [True, False]
    closed = quota.closed(np.array([2, 2]))
    assert closed is not None
    assert closed.tolist() == [True, True]


# A hundred thousand agents that live for one step each leave nothing behind.


OBS = np.zeros(2, np.float32)
SWARM = 10
EPISODE = 25
MOST_BLOCKS_AN_AGENT = 1.0
MOST_MEGABYTES = 32.0


class Mayflies(Several):
    """A queen that stays, and ten flies that live for one step; all with new ids, or two swarms in turn."""

    possible_agents, length = ("queen", "fly_0"), EPISODE
    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    born, flies = 0, list[str]()

    def pay(self, actions: Any) -> Any:
        assert set(actions) == {"queen", *self.flies}
        return {"queen": 1.0, **dict.fromkeys(self.flies, 2.0)}

    def dead(self, actions: Any) -> Any:
        return self.flies

    def observe(self) -> Any:
        first = Mayflies.born if self.config["new_ids"] else SWARM * (self.at % 2)
        Mayflies.born += SWARM * (self.at < EPISODE)
        self.flies = [f"fly_{first + number}" for number in range(SWARM)] if self.at < EPISODE else []
        return dict.fromkeys(["queen", *self.flies], OBS)


def megabytes() -> float:
    """Return the resident memory of this process, 0 where the system does not tell."""
    counts = Path("/proc/self/statm")
    return int(counts.read_text(encoding="ascii").split()[1]) * 4096 / 1e6 if counts.exists() else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("new_ids", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_memory_stays_flat_over_a_hundred_thousand_lives(new_ids: bool) -> None:
    config = {
        "env_config": {"new_ids": new_ids},
        "multiagent": {
            "policies": {"queen": RandomPolicy, "fly": RandomPolicy},
            "policy_mapping_fn": lambda agent_id: agent_id.partition("_")[0],
        },
        "num_envs_per_worker": 4,
        "train_batch_size": 400,
        "seed": 0,
    }
    Mayflies.born = 0
    with PPO(env=Mayflies, config=config) as algo:
        while Mayflies.born < 20_000:
            algo.train()
        gc.collect()
        blocks, memory, born = sys.getallocatedblocks(), megabytes(), Mayflies.born
        while Mayflies.born < 100_000:
            result = algo.train()
        gc.collect()
        grown = (sys.getallocatedblocks() - blocks) / (Mayflies.born - born)
        seats = len(base_env(algo)._allocator.seats)
        assert result["policy_reward_mean"] == {
            "queen": EPISODE,
            "fly": 2.0 if new_ids else pytest.approx(2.0 * EPISODE / 2),
        }
    assert grown < MOST_BLOCKS_AN_AGENT
    assert megabytes() - memory < MOST_MEGABYTES
    # Slots of agents that are gone are given to those that come.
    assert seats < 4 * 400


# The recorded actions of running episodes: complete, in order, and bounded.


Chunk = tuple[int, int, list[int]]


def recorder() -> CrashRecorder:
    nothing: Any = None
    return CrashRecorder(nothing, to_base_env(SoloGym(SOLO)).replayable, nothing, nothing)


def batch(*chunks: Chunk, first: int = 0) -> SampleBatch:
    """Return as much of a batch as is recorded; its chunks of (episode, agent, actions) are numbered from `first`."""
    columns = {name: np.zeros(len(chunks), np.int64) for name in TrajectorySlices.__slots__}
    columns["eps_id"] = np.array([episode for episode, _, _ in chunks])
    columns["agent_index"] = np.array([agent for _, agent, _ in chunks])
    columns["lengths"] = np.array([len(actions) for _, _, actions in chunks])
    columns["unroll_id"] = first + np.arange(len(chunks))
    actions = np.array([action for _, _, own in chunks for action in own])
    obs = np.zeros((len(actions), 1), np.float32)
    return SampleBatch({SampleBatch.OBS: obs, SampleBatch.ACTIONS: actions}, TrajectorySlices(**columns))


def recorded(log: CrashRecorder, episode: int) -> dict[int, list[int]] | None:
    found = log.actions_of(episode)
    return None if found is None else {agent: actions.tolist() for agent, actions in found.items()}


def test_each_agent_has_its_actions_in_order_over_fragments_and_lives() -> None:
    log = recorder()
    log.fragment_closed([batch((7, 0, [1, 2]), (7, 0, [3]), (8, 0, [9]))], [7, 8])
    log.fragment_closed([batch((7, 1, [5]), first=3)], [7, 8])
    log.fragment_closed([batch((7, 0, [4]), (8, 0, [8]), first=4)], [7, 8])
    assert recorded(log, 7) == {0: [1, 2, 3, 4], 1: [5]}
    assert recorded(log, 8) == {0: [9, 8]}


def test_chunks_are_in_their_order_whichever_batch_they_are_in() -> None:
    log = recorder()
    log.fragment_closed([batch((7, 0, [3]), (7, 1, [9]), (7, 0, [6]), first=1), batch((7, 0, [1, 2]))], [7])
    log.fragment_closed([batch((7, 0, [8]), first=4)], [7])
    assert recorded(log, 7) == {0: [1, 2, 3, 6, 8], 1: [9]}


def test_episodes_that_have_ended_are_dropped() -> None:
    log = recorder()
    log.fragment_closed([batch((7, 0, [1, 2]), (8, 0, [9]))], [8])
    assert recorded(log, 8) == {0: [9]}
    assert recorded(log, 7) == {}


def test_recorded_actions_do_not_change_with_the_batch() -> None:
    log, given = recorder(), batch((7, 0, [1, 2]))
    log.fragment_closed([given], [7])
    given[SampleBatch.ACTIONS][:] = 0
    assert recorded(log, 7) == {0: [1, 2]}


def test_an_episode_that_is_too_long_is_dropped_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_record, "LONGEST", 3)
    log = recorder()
    log.fragment_closed([batch((7, 0, [1, 2]), (7, 1, [1, 2]), (8, 0, [1, 2, 3]))], [7, 8])
    log.fragment_closed([batch((7, 0, [5]))], [7, 8])
    assert recorded(log, 7) is None
    assert recorded(log, 8) == {0: [1, 2, 3]}
    log.fragment_closed([], [8])
    assert recorded(log, 7) == {}
