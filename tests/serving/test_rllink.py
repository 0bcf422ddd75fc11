"""RLlink clients: their conversation, and what reaches batches and metrics of the episodes that they play."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest

from menv.serving import Limits, RLlinkInput, session
from tests.algorithms.test_custom_model import Net
from tests.serving.doors import HTTP, TCP, Door, every_door
from tests.serving.served import TWO, Served, all_taken, obs_of, served
from tests.serving.voices import Voice, episode, onnx_bytes, parts


class Player:
    """A client that acts by itself, as RLlink's own do."""

    def __init__(self, voice: Voice, fields: str = "") -> None:
        self.voice = voice
        self.fields = fields
        self.at = 0
        self.session: Any = None
        self.draws = np.random.default_rng(0)

    def load(self, state: Any) -> int:
        """Take a model; return its number."""
        assert state["type"] == "SET_STATE", state
        graph = onnx_bytes(state["onnx_file"])
        assert len(graph) > 128 * 1024
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        return int(state["weights_seq_no"])

    def act(self, obs: Any) -> tuple[int, float, list[float]]:
        """Return an action, its log-probability and the logits."""
        if self.session is None:
            return int(self.draws.integers(2)), float(np.log(0.5)), [0.0, 0.0]
        (logits,) = self.session.run(None, {"onnx::Gemm_0": np.array([obs], np.float32)})[0]
        logp = logits - np.log(np.exp(logits).sum())
        action = int(self.draws.random() < np.exp(logp[1]))
        return action, float(logp[action]), logits.tolist()

    def play(self, steps: int) -> list[Any]:
        """Play so many steps; episodes have ten, and the last one may go on in the next call."""
        episodes, left = [], steps
        while left:
            count = min(left, 10 - self.at % 10)
            numbers = range(self.at, self.at + count + 1)
            done = [self.act(obs_of(number)) for number in numbers[:-1]]
            self.at += count
            left -= count
            actions, logps, logits = (list(column) for column in zip(*done, strict=True))
            more = {"action_logp": logps, "action_dist_inputs": logits} if self.fields == "d1" else {}
            end = "terminated" if self.at % 10 == 0 else ""
            rewards = [float(action) for action in actions]
            episodes.append(episode([obs_of(n) for n in numbers], actions, rewards, end, **more))
        return episodes


@every_door
def test_the_conversation_of_rllink_through_every_door(door: Door) -> None:
    with served(kind=RLlinkInput) as one, one.training(), one.voice(door) as voice:
        voice.ping()
        config = voice.ask("GET_CONFIG")
        assert config == {"type": "SET_CONFIG", "env_steps_per_sample": 32, "force_on_policy": True}
        assert type(config["env_steps_per_sample"]) is int
        player = Player(voice, "d1")
        numbers = [player.load(voice.ask("GET_STATE"))]
        for _ in range(5):
            sent = player.play(32)
            numbers.append(player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=sent, timesteps=32)))
        assert numbers == sorted(set(numbers))
    result = one.results[-1]
    assert result["episodes_total"] == 16
    assert result["episode_len_mean"] == 10
    assert result["num_env_steps_sampled"] == 160
    assert result["external"]["num_off_policy_steps"] == 0
    assert result["num_agent_steps_trained"] > 100


def test_a_handshake_in_any_order_and_a_ping_while_an_update_is_awaited() -> None:
    patient = {"idle_timeout": 1.0}
    with served(kind=RLlinkInput, settings=patient) as one, one.voice() as voice, one.training():
        assert voice.ask("GET_STATE")["type"] == "SET_STATE"
        assert voice.ask("GET_CONFIG")["type"] == "SET_CONFIG"
        with one.voice() as other:
            # Another client plays and does not wait, so that the first one waits for it.
            other.bring(*Player(other).play(1))
            other.ping()
            voice.tell("EPISODES_AND_GET_STATE", episodes=Player(voice).play(8))
            voice.ping()
            assert voice.ask("GET_CONFIG")["env_steps_per_sample"] == 32
            other.bring(*Player(other).play(30))
            assert voice.hear()["type"] == "SET_STATE"


@pytest.mark.parametrize("door", [TCP, HTTP], ids=lambda door: door.name)
def test_a_client_that_played_and_fell_silent_holds_nobody_up(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STILL_PLAYING_S", 0.3)
    with (
        served(kind=RLlinkInput, settings={"idle_timeout": 60.0}) as one,
        one.voice(door) as silent,
        one.voice() as voice,
    ):
        silent.bring(*Player(silent).play(4))
        silent.ping()
        player = Player(voice)
        with one.training():
            numbers = [
                player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=player.play(4))) for _ in range(2)
            ]
            player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=player.play(40)))
        assert numbers == [1, 1]


def test_a_client_that_waits_for_new_weights_does_not_play_ahead_of_the_sampler() -> None:
    # One message holds four fragments, and no two messages may wait.
    sent = [whole(8)] * 16
    with (
        served(kind=RLlinkInput, settings={"limits": Limits(max_waiting=30_000)}) as one,
        one.training(),
        one.voice() as voice,
    ):
        answers = [voice.ask("EPISODES_AND_GET_STATE", episodes=sent) for _ in range(5)]
    assert [answer["type"] for answer in answers] == ["SET_STATE"] * 5, answers[-1]


def test_a_recurrent_policy_has_no_rllink_file_and_says_so_while_it_answers_one_by_one() -> None:
    model = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}
    with served(kind=RLlinkInput, model=model) as one, one.sampling(), one.voice() as voice:
        assert voice.refused("GET_STATE") == "unknown_id"
        voice.ask("START_EPISODE", episode_id="e")
        answer = voice.ask("GET_ACTION", episode_id="e", observation=[0, 0, 0])
        assert answer["type"] == "ACTION"
        assert answer["action"] in (0, 1)


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


def returns(one: Served) -> list[tuple[float, int]]:
    """Return return and length of each episode in the metrics."""
    told = one.summary()["hist_stats"]
    return list(zip(told["episode_reward"], told["episode_lengths"], strict=True))


def test_chunks_without_an_id_over_several_messages_are_one_episode() -> None:
    sent = whole(40)
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        for part in parts(sent, 7, 8, 30):
            voice.bring(part)
        batch = one.sample(40)["default_policy"]
        assert len(np.unique(batch["eps_id"])) == 1
        np.testing.assert_array_equal(batch["obs"], np.array(sent["obs"][:-1], np.float32))
        assert returns(one) == [(sum(sent["rewards"]), 40)]
        assert one.status["open_episodes"] == 0


def test_one_episode_without_an_id_is_open_on_a_connection_and_the_next_one_takes_its_place() -> None:
    first, second = parts(whole(16), 5)
    with served(kind=RLlinkInput, rollout_fragment_length=1) as one, one.voice() as voice:
        voice.bring(first)
        voice.bring(*parts(whole(16, start=100), 5))
        voice.bring(second)
        one.sample(5 + 16 + 11)
        assert sorted(returns(one)) == sorted(
            [(sum(whole(16, start=100)["rewards"]), 16), (sum(second["rewards"]), 11)]
        )
        assert one.status["open_episodes"] == 0


def test_two_clients_do_not_continue_with_each_others_episodes() -> None:
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
        voice.ping()
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


def test_a_chunk_that_comes_again_is_taken_once_and_one_that_overlaps_is_refused() -> None:
    sent = whole(40, id="one")
    first, second = parts(sent, 25)
    overlapping = parts(sent, 10)[1]
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(first, first)
        voice.bring(first)
        overlapping = {**overlapping, "t": 20, "obs": sent["obs"][20:31]}
        overlapping |= {"actions": sent["actions"][20:30], "rewards": sent["rewards"][20:30]}
        overlapping |= {"is_terminated": False}
        assert voice.refused("EPISODES", episodes=[overlapping]) == "wrong_order"
        voice.bring(second, first)
        voice.bring(second)
        batch = one.sample(40)["default_policy"]
        np.testing.assert_array_equal(batch["rewards"], np.array(sent["rewards"], np.float32))
        np.testing.assert_array_equal(batch["obs"], np.array(sent["obs"][:-1], np.float32))
        assert returns(one) == [(sum(sent["rewards"]), 40)]
        assert one.status["steps_sent_again"] == 25 + 25 + 25 + 15


def test_a_gap_between_chunks_is_refused_and_can_be_filled() -> None:
    sent = whole(40, id="one")
    first, second, third = parts(sent, 10, 20)
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        voice.bring(first)
        assert voice.refused("EPISODES", episodes=[third]) == "wrong_order"
        voice.bring(second, third)
        batch = one.sample(40)["default_policy"]
        np.testing.assert_array_equal(batch["rewards"], np.array(sent["rewards"], np.float32))


def test_a_message_in_which_one_episode_is_wrong_is_refused_as_a_whole() -> None:
    wrong = whole(5)
    wrong["rewards"] = wrong["rewards"][:-1]
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        assert voice.refused("EPISODES", episodes=[whole(32), wrong]) == "wrong_length"
        assert one.status["open_episodes"] == 0
        voice.bring(whole(32))
        assert len(one.sample(32)["default_policy"]["obs"]) == 32


BOX = gym.spaces.Box(np.array([0.0, -1.0], np.float32), np.array([10.0, 3.0], np.float32))
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "discrete": ({}, {}),
    "box": ({"action_space": BOX}, {"actions": [[1.0, 0.5], [9.0, 2.5]] * 16}),
    "lstm": (
        {"model": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}},
        {"state_in": [[0.5, -0.5] * 8] * 32},
    ),
    "custom module": ({"model": {"custom_model": Net}}, {}),
}
"""Configs, and what clients tell of such networks."""


def logp_of(one: Served, sent: Any) -> Any:
    """Return the log-probabilities of what was sent under the weights that act now."""
    networks: Any = one.algo.get_policy().networks
    rows, actions = np.array(sent["obs"][:-1], np.float32), networks.output.inverse(np.array(sent["actions"]))
    states = np.array(sent["state_in"], np.float32) if "state_in" in sent else None
    return networks.backend.evaluate(0, rows, None, actions, states).logp


@pytest.mark.parametrize("network", NETWORKS)
def test_old_actions_are_judged_by_the_weights_that_chose_them(network: str) -> None:
    config, more = NETWORKS[network]
    sent = {**whole(32, start=3), **more}
    with served(kind=RLlinkInput, lr=0.1, **config) as one, one.voice() as voice:
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
        # The weights that act are left alone.
        np.testing.assert_array_equal(logp_of(one, sent), second)
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


@pytest.mark.parametrize("lstm", [False, True], ids=["without a memory", "lstm"])
def test_inputs_and_states_of_another_network_are_refused_but_states_where_there_are_none(lstm: bool) -> None:
    model = {"fcnet_hiddens": [8], "use_lstm": lstm, "lstm_cell_size": 4}
    with served(kind=RLlinkInput, model=model) as one, one.voice() as voice:
        for width in (0, 1, 3, 100):
            wrong = whole(32, action_logp=[-0.7] * 32, action_dist_inputs=[[0.0] * width] * 32)
            assert voice.refused("EPISODES", episodes=[wrong]) == "wrong_length"
        wrong = whole(32, state_in=[[0.0] * 3] * 32)
        if lstm:
            assert voice.refused("EPISODES", episodes=[wrong]) == "wrong_length"
            wrong["state_in"] = [[0.5] * 16] * 32
        assert one.status["open_episodes"] == 0
        voice.bring(wrong)
        assert len(one.sample(32)["default_policy"]["obs"]) == 32


def member(width: int, steps: int, begin: int = 0, end: str = "", **more: Any) -> Any:
    numbers = range(begin, begin + steps + 1)
    return episode(
        [[number % 10 / 10] * width for number in numbers], [number % 3 for number in numbers[:-1]],
        [float(number) for number in numbers[:-1]], end, **more,
    )  # fmt: skip


def together(name: str, agents: dict[str, Any], t: int = 0, end: str = "") -> dict[str, Any]:
    return {
        "id": name, "t": t, "agents": agents,
        "is_terminated": end == "terminated", "is_truncated": end == "truncated",
    }  # fmt: skip


def test_agents_that_end_at_different_times_reach_the_batches_of_their_policies() -> None:
    agents = {"ann": member(2, 40, end="terminated"), "bob": member(3, 35, end="truncated")}
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            voice.bring(together("e", agents, end="terminated"))
            assert all_taken(one, voice)
        assert one.paid() == sum(range(40)) + sum(range(35))
        for name, policy in (("ann", "for_ann"), ("bob", "for_bob")):
            sent = agents[name]
            np.testing.assert_array_equal(one.column("obs", policy), np.array(sent["obs"][:-1], np.float32))
            np.testing.assert_array_equal(one.column("actions", policy), sent["actions"])
            np.testing.assert_array_equal(
                one.column("rewards", policy), np.array(sent["rewards"], np.float32)
            )
        assert one.column("terminateds", "for_ann").tolist() == [False] * 39 + [True]
        assert one.column("truncateds", "for_bob").tolist() == [False] * 34 + [True]
        assert one.summary()["hist_stats"]["episode_reward"] == [sum(range(40)) + sum(range(35))]


def test_each_agent_counts_its_own_steps_over_chunks() -> None:
    first = together("e", {"ann": member(2, 10), "bob": member(3, 4)})
    second = together("e", {"ann": member(2, 25, begin=10, end="terminated", t=10)}, t=10)
    third = together("e", {"bob": member(3, 30, begin=4, end="terminated", t=4)}, t=35, end="terminated")
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            voice.bring(first, first)
            voice.bring(second)
            voice.bring(second, third, third)
            assert all_taken(one, voice)
        assert one.paid() == sum(range(35)) + sum(range(34))
        assert one.status["steps_sent_again"] == 14 + 25 + 30


def test_what_no_action_can_own_counts_once_and_with_the_end() -> None:
    size = 30
    paid = {"unclaimed": {"bob": 1_000.5, "ann": -0.5}}
    first = together("e", {"ann": member(2, size)}) | paid
    last = together("e", {"ann": member(2, 5, begin=size, t=size, end="terminated")}, end="terminated")
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            for wrong, code in (
                (3.0, "wrong_type"),
                ({"bob": "x"}, "wrong_type"),
                ({"bob": 1e300}, "out_of_range"),
                ({"bob": 1.0, "nobody": 1.0}, "unknown_id"),
            ):
                assert voice.refused("EPISODES", episodes=[last | {"unclaimed": wrong}]) == code
            voice.bring(first)
            voice.bring(last | paid, last | paid)
            voice.bring(
                together("f", {"ann": member(2, 1, end="terminated")}, end="terminated") | {"unclaimed": None}
            )
            assert all_taken(one, voice)
        assert one.paid() == 1_000 + sum(range(size + 5))
        returns = one.summary()["hist_stats"]["episode_reward"]
        assert sorted(returns) == [0.0, 1_000 + sum(range(size + 5))]


def test_rows_of_a_client_that_tells_no_times_lie_at_the_end_of_their_own_chunk() -> None:
    first = {"ann": member(2, 4), "bob": member(3, 2)}
    second = {"ann": member(2, 2, begin=4, t=4), "bob": member(3, 3, begin=2, t=2)}
    with served(kind=RLlinkInput, **TWO, critic_obs="all_agents", rollout_fragment_length=1) as one:
        with one.sampling(), one.voice() as voice:
            # Both may come with one poll.
            voice.bring(together("e", first), together("e", second, end="terminated"))
            assert all_taken(one, voice)
        assert one.column("env_t", "for_ann").tolist() == [0, 1, 2, 3, 4, 6]
        assert one.column("env_t", "for_bob").tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(("told", "length"), [(None, 13), (0, 5), (14, 19), (15, 20), (2**62, 20)])
def test_env_steps_of_agents_that_take_turns_are_told(told: int | None, length: int) -> None:
    agents = {"ann": member(2, 10), "bob": member(3, 5)}
    last = {
        "ann": member(2, 3, begin=10, t=10, end="terminated"),
        "bob": member(3, 2, begin=5, t=5, end="terminated"),
    }
    with served(kind=RLlinkInput, **TWO) as one:
        with one.sampling(), one.voice() as voice:
            first = together("e", agents) | ({} if told is None else {"env_steps": told})
            voice.bring(first, first)
            voice.bring(together("e", last, end="terminated") | ({} if told is None else {"env_steps": 5}))
            assert all_taken(one, voice)
        assert one.summary()["hist_stats"]["episode_lengths"] == [length if told is not None else 13]


def test_policies_of_agents_are_sent_before_the_episode_and_kept_through_it() -> None:
    asked: list[Any] = []

    def mapping(agent_id: Any, episode: Any, worker: Any = None, **_: Any) -> str:
        asked.append(agent_id)
        return "even" if len(asked) % 2 else "odd"

    space = TWO["observation_space"]["ann"]
    config = {
        "observation_space": {"ann": space, "bob": space}, "action_space": TWO["action_space"],
        "multiagent": {"policies": {"even", "odd"}, "policy_mapping_fn": mapping},
    }  # fmt: skip
    with served(kind=RLlinkInput, **config) as one:
        with one.sampling(), one.voice() as voice:
            told = voice.ask("GET_POLICIES", episode_id="e", agent_ids=["ann", "bob"])
            assert told["type"] == "POLICIES"
            assert set(told["policy_ids"].values()) == {"even", "odd"}
            assert voice.ask("GET_POLICIES", episode_id="e", agent_ids=["bob", "ann"]) == told
            asked.append("somebody in between")
            agents = {"ann": member(2, 40, end="terminated"), "bob": member(2, 36, end="terminated")}
            voice.bring(together("e", agents, end="terminated"))
            assert all_taken(one, voice)
        one.paid()
        lengths = {"ann": 40, "bob": 36}
        for agent, policy in told["policy_ids"].items():
            assert len(one.column("obs", policy)) == lengths[agent]
