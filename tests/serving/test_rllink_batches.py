"""What reaches batches and metrics of the episodes that clients play by themselves: exactly what they sent."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest

from menv.serving import RLlinkInput
from tests.serving.doors import HTTP, TCP
from tests.serving.served import Served, obs_of, served, settled
from tests.serving.talks import eventually
from tests.serving.voices import episode, onnx_bytes

BOX: Any = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def whole(steps: int, start: int = 0, end: str = "terminated", **more: Any) -> Any:
    """Return an episode whose numbers tell which step each is."""
    numbers = range(start, start + steps + 1)
    return episode(
        [obs_of(n) for n in numbers],
        [n % 2 for n in numbers[:-1]],
        [n + 0.5 for n in numbers[:-1]],
        end,
        **more,
    )


def parts(sent: Any, *cuts: int) -> list[Any]:
    """Return an episode in chunks; each begins with the observation that the one before ended with."""
    edges = [0, *cuts, len(sent["actions"])]
    return [
        {
            **{name: sent[name][begin:end] for name in sent if name in ("actions", "rewards", "action_logp")},
            "obs": sent["obs"][begin : end + 1],
            "is_terminated": sent["is_terminated"] and end == edges[-1],
            "is_truncated": sent["is_truncated"] and end == edges[-1],
            **({"id": sent["id"], "t": begin} if "id" in sent else {}),
        }
        for begin, end in itertools.pairwise(edges)
    ]


def returns(one: Served) -> list[tuple[float, int]]:
    """Return return and length of each episode in the metrics."""
    told = one.summary()["hist_stats"]
    return list(zip(told["episode_reward"], told["episode_lengths"], strict=True))


def test_a_batch_holds_column_by_column_what_was_sent() -> None:
    sent = whole(
        40,
        action_logp=[-0.1 * (n + 1) for n in range(40)],
        action_dist_inputs=[[n / 9, 1.0] for n in range(40)],
    )
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(sent)
        batch = one.sample(40)["default_policy"]
    np.testing.assert_array_equal(batch["obs"], np.array(sent["obs"][:-1], np.float32))
    np.testing.assert_array_equal(batch["new_obs"], np.array(sent["obs"][1:], np.float32))
    np.testing.assert_array_equal(batch["actions"], sent["actions"])
    np.testing.assert_array_equal(batch["rewards"], np.array(sent["rewards"], np.float32))
    np.testing.assert_array_equal(batch["action_logp"], np.array(sent["action_logp"], np.float32))
    np.testing.assert_array_equal(
        batch["action_dist_inputs"], np.array(sent["action_dist_inputs"], np.float32)
    )
    assert batch["terminateds"].tolist() == [False] * 39 + [True]
    assert not batch["truncateds"].any()
    assert batch["t"].tolist() == list(range(40))


def test_a_truncated_episode_bootstraps_from_its_last_observation() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(whole(40, end="truncated"))
        batch = one.sample(40)["default_policy"]
    assert batch["truncateds"].tolist() == [False] * 39 + [True]
    assert not batch["terminateds"].any()
    np.testing.assert_array_equal(batch["new_obs"][-1], np.array(obs_of(40), np.float32))


@pytest.mark.parametrize("numbered", [False, True], ids=["without ids", "with ids"])
@pytest.mark.parametrize("msgpack", [False, True], ids=["json", "msgpack"])
def test_chunks_of_an_episode_over_several_messages_are_one_episode(numbered: bool, msgpack: bool) -> None:
    more: dict[str, Any] = {"id": "one"} if numbered else {}
    sent = whole(40, **more)
    with served(kind=RLlinkInput) as one, one.voice(msgpack=msgpack) as voice:
        for part in parts(sent, 7, 8, 30):
            voice.bring(part)
        batch = one.sample(40)["default_policy"]
        assert len(np.unique(batch["eps_id"])) == 1
        np.testing.assert_array_equal(batch["obs"], np.array(sent["obs"][:-1], np.float32))
        assert batch["terminateds"].tolist() == [False] * 39 + [True]
        assert returns(one) == [(sum(sent["rewards"]), 40)]
        assert one.status["open_episodes"] == 0


def test_chunks_of_several_environments_on_one_connection_are_told_apart_without_ids() -> None:
    sent = [whole(16, start=100 * place) for place in range(3)]
    with served(kind=RLlinkInput, rollout_fragment_length=1) as one, one.voice() as voice:
        for together in zip(*(parts(episode, 5, 11) for episode in sent), strict=True):
            voice.bring(*together)
        one.sample(48)
        assert sorted(returns(one)) == [(sum(episode["rewards"]), 16) for episode in sent]


def test_two_clients_do_not_go_on_with_each_others_episodes() -> None:
    first, second = parts(whole(32), 16)
    with served(kind=RLlinkInput) as one, one.voice() as voice, one.voice() as other:
        voice.bring(first)
        other.bring(second)
        assert voice.ask("PING") == other.ask("PING") == {"type": "PONG"}
        one.sample()
        assert [length for _, length in returns(one)] == [16]
        assert one.status["open_episodes"] == 1


def test_episodes_without_an_action_are_taken_and_change_nothing() -> None:
    nothing = whole(0, end="")
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(nothing, {**nothing, "id": "x"}, whole(32), {**nothing, "is_truncated": True})
        voice.bring({**nothing, "id": "y", "is_terminated": True})
        batch = one.sample(32)["default_policy"]
        assert len(batch["obs"]) == 32
        assert returns(one) == [(sum(whole(32)["rewards"]), 32)]
        assert voice.ask("PING") == {"type": "PONG"}
        assert one.refused == 0


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_episode_may_end_with_a_chunk_without_an_action(end: str) -> None:
    sent = whole(36, end=end, id="one")
    last = {**whole(0, start=36, end=end), "id": "one", "t": 36}
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(*parts({**sent, "is_terminated": False, "is_truncated": False}, 20), last)
        batch = one.sample(36)["default_policy"]
        assert len(batch["obs"]) == 36
        assert batch[f"{end}s"].tolist() == [False] * 35 + [True]
        assert returns(one) == [(sum(sent["rewards"]), 36)]


def test_a_chunk_that_comes_again_is_taken_once_and_one_that_overlaps_from_where_it_is_new() -> None:
    sent = whole(40, id="one")
    first, second = parts(sent, 25)
    overlapping = parts(sent, 10)[1]
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(first, first)
        voice.bring(first)
        voice.bring(overlapping, second, overlapping)
        voice.bring(second)
        batch = one.sample(40)["default_policy"]
        np.testing.assert_array_equal(batch["rewards"], np.array(sent["rewards"], np.float32))
        np.testing.assert_array_equal(batch["obs"], np.array(sent["obs"][:-1], np.float32))
        assert returns(one) == [(sum(sent["rewards"]), 40)]
        # What came last may still be on its way when all steps are there.
        assert eventually(lambda: one.status["steps_sent_again"] >= 25 + 25 + 15 + 15 + 30 + 15)
        assert one.status["steps_sent_again"] == 25 + 25 + 15 + 15 + 30 + 15


def test_a_gap_between_chunks_is_refused_and_can_be_filled() -> None:
    sent = whole(40, id="one")
    first, second, third = parts(sent, 10, 20)
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(first)
        assert voice.refused("EPISODES", episodes=[third]) == "wrong_order"
        voice.bring(second, third)
        batch = one.sample(40)["default_policy"]
        np.testing.assert_array_equal(batch["rewards"], np.array(sent["rewards"], np.float32))


def test_a_gap_at_the_beginning_leaves_no_episode_behind() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        assert voice.refused("EPISODES", episodes=[{**whole(5), "id": "one", "t": 3}]) == "wrong_order"
        assert one.status["open_episodes"] == 0
        voice.bring({**whole(32), "id": "one"})
        assert len(one.sample(32)["default_policy"]["obs"]) == 32


def test_a_message_in_which_one_episode_is_wrong_is_refused_as_a_whole() -> None:
    wrong = whole(5)
    wrong["rewards"] = wrong["rewards"][:-1]
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        assert voice.refused("EPISODES", episodes=[whole(32), wrong]) == "wrong_length"
        assert one.status["open_episodes"] == 0
        voice.bring(whole(32))
        assert len(one.sample(32)["default_policy"]["obs"]) == 32


def test_log_probabilities_per_dimension_are_added_up() -> None:
    steps = 34
    sent = episode(
        [obs_of(n) for n in range(steps + 1)], [[0.1, 0.5]] * steps, [1.0] * steps, "terminated",
        action_logp=[[-1.0, -0.25]] * steps, action_dist_inputs=[[0.0, 0.5, -1.0, -1.0]] * steps,
    )  # fmt: skip
    flat = {**sent, "action_logp": [-1.25] * steps}
    with served(kind=RLlinkInput, action_space=BOX) as one, one.voice() as voice:
        voice.bring(sent)
        each = one.sample(steps)["default_policy"]["action_logp"]
        voice.bring(flat)
        together = one.sample(steps)["default_policy"]["action_logp"]
    np.testing.assert_array_equal(each, together)


def density(inputs: Any, actions: Any) -> Any:
    """Return log-densities of normal distributions by their means and the logarithms of their deviations."""
    mean, log_std = np.split(np.asarray(inputs, np.float64), 2, axis=1)
    z = (np.asarray(actions) - mean) / np.exp(log_std)
    return (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)


def test_the_server_computes_the_same_log_density_of_box_actions_as_a_client_does() -> None:
    """Both speak of the actions before they are clipped, in the environment's units."""
    steps = 33
    draws = np.random.default_rng(0)
    with served(kind=RLlinkInput, action_space=BOX) as one, one.voice() as voice:
        with one.sampling():
            state = voice.ask("GET_STATE")
        graph = onnxruntime.InferenceSession(onnx_bytes(state["onnx_file"]))
        obs = np.array([obs_of(n) for n in range(steps + 1)], np.float32)
        inputs = np.concatenate([graph.run(None, {"onnx::Gemm_0": row[None]})[0] for row in obs[:-1]])
        mean, log_std = np.split(inputs, 2, axis=1)
        actions = mean + 3 * np.exp(log_std) * draws.normal(size=mean.shape)
        own = density(inputs, actions)
        sent = episode(obs.tolist(), actions.tolist(), [0.0] * steps, "terminated")
        told = {**sent, "action_logp": own.tolist(), "action_dist_inputs": inputs.tolist()}
        voice.bring(sent)
        computed = one.sample(steps)["default_policy"]
        voice.bring(told)
        given = one.sample(steps)["default_policy"]
    assert (np.abs(actions) > BOX.high).any()
    np.testing.assert_allclose(computed["action_logp"], given["action_logp"], atol=1e-4)
    np.testing.assert_allclose(computed["action_dist_inputs"], given["action_dist_inputs"], atol=1e-5)
    np.testing.assert_allclose(computed["actions"], given["actions"], atol=1e-6)


def logp_of(one: Served, sent: Any) -> Any:
    """Return the log-probabilities of what was sent under the weights that act now, from the logits."""
    policy: Any = one.algo.get_policy()
    rows, actions = np.array(sent["obs"][:-1], np.float32), np.array(sent["actions"])
    logits, _ = policy.networks.backend.evaluate(0, rows, None, actions)
    return logits[np.arange(len(actions)), actions] - np.log(np.exp(logits).sum(axis=1))


def test_old_actions_are_judged_by_the_weights_that_chose_them() -> None:
    sent = whole(32, start=3)
    with served(kind=RLlinkInput, lr=0.1) as one, one.voice() as voice:
        first = logp_of(one, sent)
        voice.bring(sent, weights_seq_no=1)
        one.algo.train()
        second = logp_of(one, sent)
        voice.bring(sent, weights_seq_no=1)
        old = one.sample(32)["default_policy"]
        voice.bring({**sent, "weights_seq_no": 1}, weights_seq_no=2)
        own = one.sample(32)["default_policy"]
        voice.bring(sent, weights_seq_no=2)
        new = one.sample(32)["default_policy"]
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_allclose(old["action_logp"], first, atol=1e-5)
    np.testing.assert_allclose(own["action_logp"], first, atol=1e-5)
    np.testing.assert_allclose(new["action_logp"], second, atol=1e-5)


@pytest.mark.parametrize("told", [False, True], ids=["computed", "told by the client"])
def test_rows_of_weights_that_are_too_old_are_counted_and_left_out(told: bool) -> None:
    more: dict[str, Any] = (
        {"action_logp": [-0.7] * 16, "action_dist_inputs": [[0.0, 0.0]] * 16} if told else {}
    )
    with served(kind=RLlinkInput, settings={"max_staleness": 1}) as one, one.voice() as voice:
        for _ in range(2):
            voice.bring(whole(16, **more), whole(16, **more))
            result = one.algo.train()
        assert result["external"]["num_stale_steps"] == result["external"]["num_agent_steps_left_out"] == 0
        trained = result["num_agent_steps_trained"]
        voice.bring(whole(16, **more) | {"weights_seq_no": 1}, whole(16, **more) | {"weights_seq_no": 2})
        result = one.algo.train()
        external = result["external"]
        assert external["num_stale_steps"] == external["num_off_policy_steps"] == 16
        assert external["num_agent_steps_left_out"] == 16
        assert result["num_agent_steps_trained"] == trained + 16


def test_weights_of_a_number_that_never_was_count_as_unknown() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(whole(32), weights_seq_no=99)
        result = one.algo.train()
        assert result["external"]["num_off_policy_steps"] == 32
        assert result["external"]["num_agent_steps_left_out"] == 32


@pytest.mark.parametrize("width", [0, 1, 3, 100])
def test_inputs_of_another_distribution_are_refused(width: int) -> None:
    wrong = whole(32, action_logp=[-0.7] * 32, action_dist_inputs=[[0.0] * width] * 32)
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        assert voice.refused("EPISODES", episodes=[wrong]) == "wrong_length"
        assert one.status["open_episodes"] == 0
        voice.bring(whole(32))
        assert len(one.sample(32)["default_policy"]["obs"]) == 32


@pytest.mark.parametrize("lstm", [False, True], ids=["without a memory", "lstm"])
def test_states_of_another_network_are_refused_by_one_that_has_a_memory(lstm: bool) -> None:
    model = {"fcnet_hiddens": [8], "use_lstm": lstm, "lstm_cell_size": 4}
    with served(kind=RLlinkInput, model=model) as one, one.voice() as voice:
        wrong = whole(32, state_in=[[0.0] * 3] * 32)
        if lstm:
            assert voice.refused("EPISODES", episodes=[wrong]) == "wrong_length"
            wrong["state_in"] = [[0.5] * 16] * 32
        voice.bring(wrong)
        assert len(one.sample(32)["default_policy"]["obs"]) == 32


def test_rewards_that_no_network_can_learn_from_are_refused() -> None:
    wrong = whole(32)
    wrong["rewards"][3] = 1e39
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        assert voice.refused("EPISODES", episodes=[wrong]) == "out_of_range"
        voice.ask("START_EPISODE", episode_id="e")
        assert voice.refused("LOG_RETURNS", episode_id="e", reward=-1e39) == "out_of_range"
        assert voice.ask("LOG_RETURNS", episode_id="e", reward=3e38)["type"] == "OK"


def test_an_id_that_was_used_long_ago_is_refused_and_costs_nothing_else() -> None:
    with served(kind=RLlinkInput, doors=(TCP, HTTP)) as one, one.sampling(), one.voice(TCP) as voice:
        for number in range(1_100):
            voice.tell("EPISODES", episodes=[whole(1, id=f"e{number}")])
        # Where nothing is remembered of an episode its number is all that is known.
        answer = voice.ask("EPISODES_AND_GET_STATE", episodes=[whole(1, id="e0")])
        assert (answer["type"], answer.get("code")) == ("ERROR", "wrong_order")
        assert voice.ask("PING") == {"type": "PONG"}


def test_a_client_that_goes_with_chunks_open_leaves_their_rows_and_a_faulty_episode() -> None:
    sent = whole(40, id="one")
    with served(kind=RLlinkInput) as one:
        with one.sampling():
            with one.voice() as voice:
                voice.bring(parts(sent, 35)[0])
                assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.paid() == sum(sent["rewards"][:35])
        result = one.summary()
        assert (result["episodes_total"], result["num_faulty_episodes"]) == (0, 1)
        assert "the connection of its client ended" in result["first_fault"]
