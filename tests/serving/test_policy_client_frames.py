"""Policy clients whose policy sees several observations at once: they stack what the server stacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.connectors import AgentConnector, register_connector
from menv.envs import RandomMultiAgentEnv
from menv.errors import ContractError
from menv.inference.policy_bundle import pack_bundle
from menv.serving.client.local_actor import LocalPolicy, unpacked
from menv.serving.client.policy_client import PolicyClient
from menv.serving.protocol import SetState
from tests.serving.courses import Course, observation, play
from tests.serving.talks import eventually
from tests.serving.test_policy_client_policies import MODES, TEAMS

FRAMES: dict[str, Any] = {
    "agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})],
    "observation_filter": "MeanStdFilter",
}
STACKED: dict[str, Any] = {"agent_connectors": FRAMES["agent_connectors"]}


def told_and_found(course: Course, policy: str = "default_policy") -> tuple[Any, Any]:
    """Return how probable actions were as the client says, and as the rows say that the server has made."""
    columns = [course.column(name, policy) for name in ("obs", "actions", "action_logp")]
    server: Any = course.algo.get_policy(policy)
    judged = server.networks.backend.evaluate(server.index, columns[0], None, columns[1])
    return columns[2], judged.logp


@pytest.mark.parametrize("mode", MODES)
def test_the_rows_hold_the_frames_of_each_episode(mode: str) -> None:
    paid = [float(number) for number in range(20)]
    with (
        Course(STACKED) as course,
        PolicyClient(course.address, mode, update_interval=None) as client,  # type: ignore[arg-type]
    ):
        for _ in range(2):
            play(client, paid)
        client.close()
        assert course.has_rewards(paid * 2)
        seen = np.rint(course.column("obs").reshape(-1, 3, 3)[:, :, 2] * 1000).astype(int)
        for row, reward in zip(seen.tolist(), course.column("rewards").astype(int).tolist(), strict=True):
            assert row == [max(reward - 2, 0), max(reward - 1, 0), reward]
        assert np.allclose(*told_and_found(course), atol=1e-5)


def test_frames_outlast_new_weights_in_the_middle_of_an_episode() -> None:
    with Course(STACKED) as course, PolicyClient(course.address, update_interval=None) as client:
        names = [client.start_episode(), client.start_episode()]
        for number in range(6):
            if number == 3:
                blob = pack_bundle(course.algo.get_policy())
                assert client._actor is not None
                client._actor._take(SetState(weights_seq_no=1, bundles={"default_policy": blob}))
            for name in names:
                client.get_action(name, observation(40 * number))
                client.log_returns(name, float(number))
        for name in names:
            client.end_episode(name, observation(9))
        client.close()
        assert course.has_rewards([float(number) for number in range(6)] * 2)
        assert np.allclose(*told_and_found(course), atol=1e-5)


class Aging(AgentConnector):
    """Counts the rows of each life."""

    keeps_lives = tells_lives = True

    def __init__(self, ctx: Any) -> None:
        super().__init__(ctx)
        self.ages: dict[int, int] = {}

    def over_rows(self, rows: Any) -> None:
        rows.array()
        for slot in rows.slots.tolist():
            self.ages[slot] = self.ages.get(slot, 0) + 1

    def lives(self, slots: Any) -> list[Any]:
        return [self.ages.get(slot) for slot in slots]

    def take_lives(self, slots: Any, lives: Any) -> None:
        self.ages.update({slot: age or 0 for slot, age in zip(slots, lives, strict=True)})

    def to_state(self) -> Any:
        return "AgingOfClients", None

    @classmethod
    def from_state(cls, ctx: Any, params: Any) -> Any:
        return cls(ctx)


register_connector("AgingOfClients", Aging)


def test_connectors_that_remember_lives_may_come_and_go_in_the_middle_of_one() -> None:
    with Course(STACKED) as course:
        policy = course.algo.get_policy()
        local = LocalPolicy(pack_bundle(policy), 1)
        life, ages = None, []
        for number in range(6):
            if number == 2:
                policy.agent_connectors.prepend(Aging(policy.agent_connectors.ctx))
            if number == 4:
                policy.agent_connectors.remove("Aging")
            local.take(unpacked(None, pack_bundle(policy)), number)
            decided = local.act([observation(number)], None, None, [life], "here")
            assert decided.lives is not None
            (life,) = decided.lives
            ages.append([memory for memory in life[1] if isinstance(memory, int)])
            frames = np.concatenate([observation(max(before, 0)) for before in range(number - 2, number + 1)])
            assert np.allclose(decided.rows[0], frames)
        assert ages == [[], [], [1], [2], [], []]


@pytest.mark.parametrize("trains", [False, True])
def test_agents_that_come_and_go_have_frames_of_their_own(trains: bool) -> None:
    env = RandomMultiAgentEnv(TEAMS["env_config"])
    settings = {**TEAMS, **(FRAMES if trains else STACKED)}
    with Course(settings, trains=trains) as course, PolicyClient(course.address) as client:
        for seed in range(4):
            obs, _ = env.reset(seed=seed)
            name, over = client.start_episode(), False
            while not over:
                actions = client.get_action(name, obs)
                obs, rewards, terminateds, truncateds, _ = env.step(actions)
                over = terminateds.pop("__all__") or truncateds.pop("__all__")
                client.log_returns(
                    name,
                    {agent: rewards.get(agent, 0.0) for agent in actions},
                    multiagent_done_dict=terminateds,
                )
            client.end_episode(name, obs, truncated=bool(env.agents))
        client.close()
        if trains:
            assert eventually(lambda: course.algo.iteration > 1)
        else:
            for policy in ("red", "blue"):
                told, found = told_and_found(course, policy)
                assert len(told) > 5
                assert np.allclose(told, found, atol=1e-5)


class Untold(AgentConnector):
    """Remembers lives and does not say what."""

    keeps_lives = True

    def over_rows(self, rows: Any) -> None:
        rows.array()

    def to_state(self) -> Any:
        return "UntoldOfClients", None

    @classmethod
    def from_state(cls, ctx: Any, params: Any) -> Any:
        return cls(ctx)


register_connector("UntoldOfClients", Untold)


def test_a_policy_whose_connectors_do_not_tell_what_they_remember_acts_at_the_server_only() -> None:
    with Course({"agent_connectors": ["UntoldOfClients"]}) as course:
        with (
            PolicyClient(course.address) as client,
            pytest.raises(ContractError, match="use inference_mode='remote'"),
        ):
            client.get_action(client.start_episode(), observation(0))
        with PolicyClient(course.address, "remote") as client:
            assert len(play(client, [1.0, 2.0])) == 2


class Negative(AgentConnector):
    """Changes signs."""

    def transform(self, ac_data: Any) -> Any:
        ac_data.data["new_obs"] = -ac_data.data["new_obs"]
        return ac_data

    def to_state(self) -> Any:
        return "NegativeOfClients", None

    @classmethod
    def from_state(cls, ctx: Any, params: Any) -> Any:
        return cls(ctx)


register_connector("NegativeOfClients", Negative)


def test_connectors_that_come_later_reach_clients_that_act_by_themselves() -> None:
    """Such a client asked for weights alone as long as its own connectors were plain."""
    with Course() as course, PolicyClient(course.address, update_interval=None) as client:
        play(client, [float(number) for number in range(8)])
        client.update_policy_weights()
        assert course.has_rewards([float(number) for number in range(8)])
        policy = course.algo.get_policy()
        policy.agent_connectors.append(Negative(policy.agent_connectors.ctx))
        play(client, [float(number) for number in range(8, 16)])
        client.update_policy_weights()
        # A fragment that has begun runs to its end with the connectors that it began with.
        assert eventually(lambda: course.algo._external_clients.publisher.weights_seq_no > 1)
        client.update_policy_weights()
        play(client, [float(number) for number in range(16, 24)])
        client.close()
        assert course.has_rewards([float(number) for number in range(24)])
        rewards = course.column("rewards")
        late = rewards >= 16
        assert np.allclose(
            course.column("obs")[late], [-np.array(observation(int(number))) for number in rewards[late] - 16]
        )
        told, found = told_and_found(course)
        assert np.allclose(told[late], found[late], atol=1e-5)
        last = course.batches[-1]["default_policy"]
        assert not np.any(last.get("off_policy", False))
