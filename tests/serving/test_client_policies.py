"""Policy clients with every kind of policy and space, while policies come and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.connectors import AgentConnector, register_connector
from menv.envs import RandomMultiAgentEnv
from menv.errors import ContractError
from menv.inference.policy_bundle import pack_bundle, policy_from_bytes
from menv.serving import PolicyClient, PolicyServerInput
from menv.serving.protocol import SetState
from tests.serving.courses import TEAMS, every_mode, keeping, observation, play, playing
from tests.serving.served import MASKED, Served, served, settled
from tests.serving.talks import eventually


@every_mode
def test_masks_hold_and_memory_belongs_to_an_episode(mode: str) -> None:
    model = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
    sizes = {"rollout_fragment_length": 5, "train_batch_size": 10}

    def seen(number: int, allowed: int) -> Any:
        return {
            "action_mask": np.identity(3, np.int8)[allowed],
            "at": np.array([0.5, number / 15], np.float32),
        }

    with playing(mode, {"model": model, **sizes, **MASKED}) as (course, client):
        names = [client.start_episode() for _ in range(2)]
        for number in range(15):
            for name in names:
                assert client.get_action(name, seen(number, number % 3)) == number % 3
                client.log_returns(name, float(number))
        for name in names:
            client.end_episode(name, {**seen(15, 0), "action_mask": np.zeros(3, np.int8)})
        client.close()
        assert course.has_rewards([float(number) for number in range(15)] * 2)
        rewards, states = course.column("rewards"), course.column("state_in_0")
        for number in range(15):
            both = states[rewards == number]
            assert np.allclose(both[0], both[1], atol=1e-5)
            assert both.any() == (number > 0)


@every_mode
def test_an_agent_that_is_done_in_the_last_step_of_a_truncated_episode_is_terminated(mode: str) -> None:
    seen = np.zeros(10, np.float32)
    with playing(mode, TEAMS) as (course, client):
        name = client.start_episode()
        client.get_action(name, {"red_0": seen, "blue_0": seen})
        client.log_returns(name, {"red_0": 1.0, "blue_0": 2.0}, multiagent_done_dict={"red_0": True})
        client.end_episode(name, {"red_0": seen, "blue_0": seen}, truncated=True)
        client.close()
        assert course.has_rewards([1.0], "red")
        assert course.has_rewards([2.0], "blue")
        for policy, flags in (("red", (True, False)), ("blue", (False, True))):
            assert (course.column("terminateds", policy)[0], course.column("truncateds", policy)[0]) == flags


@every_mode
def test_an_episode_has_an_env_step_for_each_turn_wherever_messages_cut_it(mode: str) -> None:
    seen = np.zeros(10, np.float32)
    with playing(mode, TEAMS) as (course, client):
        for moves in ([*[["red_0"], ["red_1"]] * 10, ["red_0", "red_1"]], [["red_0"]] * 12):
            name = client.start_episode()
            for agents in moves:
                client.get_action(name, dict.fromkeys(agents, seen))
            client.end_episode(name, {})
        client.close()
        assert course.has_rewards([0.0] * 34, "red")
        assert sorted(course.summary()["hist_stats"]["episode_lengths"]) == [12, 21]


def turns(mode: Any) -> list[tuple[str, int, int, int]]:
    """Return what was seen when in a game of agents that pause, end and come late: policy, move, env steps."""
    with playing(mode, {**TEAMS, "critic_obs": "all_agents"}) as (course, client):
        name, moves, number = client.start_episode(), [*["red_0"] * 5, *["blue_0"] * 9], 0
        for agents in [*([agent] for agent in moves), ["red_0", "blue_0"], ["red_0", "red_1"], ["red_0"]]:
            client.get_action(name, {agent: np.full(10, number / 100, np.float32) for agent in agents})
            number += 1
            done = {"red_1": "red_1" in agents}
            client.log_returns(name, dict.fromkeys(agents, 1.0), multiagent_done_dict=done)
        client.end_episode(name, {"blue_0": np.full(10, number / 100, np.float32)}, truncated=True)
        client.close()
        assert course.has_rewards([1.0] * 9, "red")
        assert course.has_rewards([1.0] * 10, "blue")
        found: list[tuple[str, int, int, int]] = []
        for policy in ("red", "blue"):
            seen = (course.column("obs", policy)[:, 0] * 100).round().astype(int)
            dates = (course.column(column, policy).tolist() for column in ("env_t", "next_env_t"))
            found += zip([policy] * len(seen), seen.tolist(), *dates, strict=True)
        return sorted(found)


def test_central_critics_see_together_what_happened_together_wherever_it_was_played() -> None:
    told = turns("local")
    assert told == turns("remote")
    assert all(move == env_t for _, move, env_t, _ in told)


def playing_on(client: PolicyClient, rewards: int) -> None:
    name, seen = client.start_episode(), np.zeros(10, np.float32)
    for _ in range(rewards):
        client.get_action(name, {"red_0": seen, "blue_0": seen})
        client.log_returns(name, {"red_0": 1.0, "blue_0": 2.0})
    client.end_episode(name, {})


def test_steps_of_a_client_that_knows_one_policy_train_that_policy() -> None:
    one_policy = {"policies": ["red"], "policy_mapping_fn": lambda agent_id, **kwargs: "red"}
    with served(kind=PolicyServerInput, **{**TEAMS, "multiagent": one_policy}) as one:
        with one.sampling():
            before = one.client()
            playing_on(before, 3)
        one.algo.add_policy("blue", policy_mapping_fn=TEAMS["multiagent"]["policy_mapping_fn"])
        with one.sampling():
            with before, one.client() as after:
                playing_on(before, 40)
                playing_on(after, 40)
                assert after._actor is not None
                assert after._actor._policies.keys() == {"red", "blue"}
                with one.voice() as voice:
                    assert voice.greet()["policies"].keys() == {"red", "blue"}
            assert settled(one)
        one.paid()
        assert sorted(one.column("rewards", "red").tolist()) == [1.0] * 83 + [2.0] * 43
        assert one.column("rewards", "blue").tolist() == [2.0] * 40


def test_a_policy_that_is_removed_costs_local_clients_nothing_but_itself() -> None:
    with served(kind=PolicyServerInput, **TEAMS) as one:
        with one.sampling():
            client = one.client()
            playing_on(client, 3)
        one.algo.remove_policy("blue", policy_mapping_fn=lambda agent_id, **kwargs: "red")
        with one.sampling():
            with client:
                client.update_policy_weights()
                playing_on(client, 40)
                assert client.weights_seq_no == one.envs.broker.weights_seq_no
            assert settled(one)
        one.paid()
        assert sorted(one.column("rewards", "red").tolist()) == [1.0] * 43 + [2.0] * 40


def test_actions_are_as_probable_as_they_were_under_the_weights_that_chose_them() -> None:
    with playing("local") as (course, client):
        name = client.start_episode()
        for number in range(4):
            client.get_action(name, observation(number))
            client.log_returns(name, float(number))
        other = policy_from_bytes(pack_bundle(course.algo.get_policy()))
        other.set_weights({key: value + 1.0 for key, value in other.get_weights().items()})
        assert client._actor is not None
        client._actor._take(
            SetState(weights_seq_no=99), {"default_policy": other.get_weights()}, client._session.session
        )
        client.end_episode(name, observation(4))
        client.close()
        assert course.has_rewards([0.0, 1.0, 2.0, 3.0])
        obs, actions = course.column("obs"), course.column("actions")
        for policy, agrees in ((course.algo.get_policy(), True), (other, False)):
            found = policy.networks.backend.evaluate(0, obs, None, actions).logp
            assert np.allclose(course.column("action_logp"), found, atol=1e-5) is agrees


def told_and_found(course: Served, policy: str = "default_policy") -> tuple[Any, Any]:
    """Return how probable actions were as the client says, and as the rows say that the server has made."""
    columns = [course.column(name, policy) for name in ("obs", "actions", "action_logp")]
    server: Any = course.algo.get_policy(policy)
    judged = server.networks.backend.evaluate(server.index, columns[0], None, columns[1])
    return columns[2], judged.logp


@pytest.mark.slow_unless("False")
@pytest.mark.parametrize("trains", [False, True])
def test_agents_that_come_and_go_act_locally(trains: bool) -> None:
    env = RandomMultiAgentEnv(TEAMS["env_config"])
    settings = {**TEAMS, **({"observation_filter": "MeanStdFilter"} if trains else {}), "num_sgd_iter": 1}
    moves = {"red": 0, "blue": 0}
    with playing("local", settings, trains=trains) as (course, client):
        for seed in range(4):
            obs, _ = env.reset(seed=seed)
            name, over = client.start_episode(), False
            while not over:
                actions = client.get_action(name, obs)
                for agent in actions:
                    moves[agent.partition("_")[0]] += 1
                obs, rewards, terminateds, truncateds, _ = env.step(actions)
                over = terminateds.pop("__all__") or truncateds.pop("__all__")
                paid = {agent: rewards.get(agent, 0.0) for agent in actions}
                client.log_returns(name, paid, multiagent_done_dict=terminateds)
            client.end_episode(name, obs, truncated=bool(env.agents))
        client.close()
        if trains:
            assert eventually(lambda: course.algo.iteration > 1)
        else:
            assert min(moves.values()) > 5
            assert eventually(lambda: {name: len(course.column("obs", name)) for name in moves} == moves)
            for policy in moves:
                told, found = told_and_found(course, policy)
                assert np.allclose(told, found, atol=1e-5)


def test_a_policy_whose_connectors_keep_state_per_agent_acts_at_the_server_only() -> None:
    with keeping({"agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})]}) as course:
        with PolicyClient(course.address) as client, pytest.raises(ContractError, match="inference_mode"):
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
    with playing("local") as (course, client):
        play(client, [float(number) for number in range(8)])
        client.update_policy_weights()
        assert course.has_rewards([float(number) for number in range(8)])
        policy = course.algo.get_policy()
        policy.agent_connectors.append(Negative(policy.agent_connectors.ctx))
        play(client, [float(number) for number in range(8, 16)])
        client.update_policy_weights()
        # A fragment that has begun runs to its end with the connectors that it began with.
        assert eventually(lambda: course.algo._external_clients.weights_seq_no > 1)
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


@pytest.mark.parametrize("observation_filter", ["NoFilter", "MeanStdFilter"])
def test_a_local_client_takes_the_weights_of_another_server_that_has_the_same_number(
    observation_filter: str,
) -> None:
    first: dict[str, Any] = {"observation_filter": observation_filter, "explore": False}
    with keeping(first) as course:
        port = course.port
        client = PolicyClient(course.address, "local", update_interval=None, timeout=20)
        play(client, [1.0] * 8)
        client.update_policy_weights()
        number = client.weights_seq_no
    with client, keeping({**first, "seed": 4}, port=port) as course:
        client.update_policy_weights()
        assert client.weights_seq_no == number == 1
        assert client._actor is not None
        have = client._actor._policies["default_policy"].policy.get_weights()
        wanted = course.algo.get_policy().get_weights()
        assert have.keys() == wanted.keys()
        assert all(np.array_equal(have[name], wanted[name]) for name in wanted)
