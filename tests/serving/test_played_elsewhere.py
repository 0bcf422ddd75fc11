"""Steps that clients played by themselves: the batch is that of the same steps sampled here, and what clients tell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.serving import RLlinkInput
from tests.external.walk import BOX, Walk
from tests.serving.served import TINY, served
from tests.serving.talks import eventually
from tests.serving.voices import Turns, episode, parts

LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filter": {"observation_filter": "MeanStdFilter"},
    "frames": {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})]},
    "lstm": {"model": LSTM},
    "filter and lstm": {"observation_filter": "MeanStdFilter", "model": LSTM},
    "clipped rewards": {"clip_rewards": True},
}
KINDS: dict[str, dict[str, Any]] = {"discrete": {}, "masked": {"masked": True}, "box": {"box": True}}
ELSEWHERE = ("eps_id", "env_id", "unroll_id", "infos")
"""What says where and when something was sampled is not the same, and clients send no infos."""
CLOSE = ("action_logp", "action_dist_inputs", "action_prob", "vf_preds", "advantages", "value_targets")
CONFIG: dict[str, Any] = {"rollout_fragment_length": 20, "train_batch_size": 20, "seed": 7}


class Noting(Walk):
    """Notes its episodes as a client sends them, but for the actions, which are those of the batch."""

    def __init__(self, **kind: Any) -> None:
        super().__init__(**kind)
        self.noted: list[dict[str, Any]] = []

    def reset(self, **how: Any) -> Any:
        found = super().reset(**how)
        self.noted.append(episode([as_json(found[0])], [], []))
        return found

    def step(self, action: Any) -> Any:
        found = super().step(action)
        now = self.noted[-1]
        now["obs"].append(as_json(found[0]))
        now["rewards"].append(found[1])
        now["is_terminated"], now["is_truncated"] = found[2:4]
        return found


def as_json(obs: Any) -> Any:
    return {name: part.tolist() for name, part in obs.items()} if isinstance(obs, dict) else obs.tolist()


@cache
def sampled_here(settings: str, kind: str, fragments: int) -> tuple[list[Any], list[list[Any]]]:
    """Return batches of whole episodes that an algorithm samples, and the episodes of each; nobody changes them."""
    walk = Noting(**KINDS[kind])
    config = config_of(walk, settings, batch_mode="complete_episodes")
    with PPO(env=lambda context: walk, config={**TINY, **config}) as algo:
        batches = [algo.sample()["default_policy"] for _ in range(fragments)]
    played, rest = [], iter(walk.noted)
    for batch in batches:
        played.append([{**next(rest), "actions": told(kind, piece)} for piece in batch.split_by_episode()])
    return batches, played


def told(kind: str, piece: Any) -> Any:
    """Return the actions of an episode as clients tell them: those of a Box beyond its bounds, too."""
    actions = piece["actions"]
    return (BOX.low + (actions + 1) * (BOX.high - BOX.low) / 2 if kind == "box" else actions).tolist()


def config_of(walk: Walk, settings: str, **more: Any) -> dict[str, Any]:
    spaces = {"observation_space": walk.observation_space, "action_space": walk.action_space}
    return {**CONFIG, **SETTINGS[settings], **spaces, **more}


def server(kind: str, settings: str = "plain", algorithm: Any = PPO, **config: Any) -> Any:
    config = config_of(Walk(**KINDS[kind]), settings, **config)
    return served(algorithm, RLlinkInput, settings={"idle_timeout": 5.0}, **config)


def by_episode(batches: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the columns of each episode, ordered by what happened, from batches that may cut them."""
    found: dict[int, list[Any]] = {}
    for batch in batches:
        for piece in batch.split_by_episode():
            found.setdefault(int(piece["eps_id"][0]), []).append(piece)
    episodes = [
        {name: np.concatenate([piece[name] for piece in pieces]) for name in names}
        for pieces in found.values()
    ]
    return sorted(episodes, key=lambda columns: (columns["rewards"].tobytes(), columns["actions"].tobytes()))


def check_same(here: Sequence[Any], there: Sequence[Any], without: tuple[str, ...] = ()) -> None:
    """Check that episodes are equal, to the last bit but where networks were asked again."""
    names = [name for name in here[0] if name not in (*ELSEWHERE, *without)]
    for one, other in zip(by_episode(here, names), by_episode(there, names), strict=True):
        for name in names:
            if name in CLOSE or (name.endswith("actions") and one[name].dtype.kind == "f"):
                np.testing.assert_allclose(other[name], one[name], rtol=2e-4, atol=2e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(other[name], one[name], err_msg=name)
                assert other[name].dtype == one[name].dtype, name


@pytest.mark.slow_unless("plain-*", "frames-*", "filter and lstm-*")
@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_whole_episodes_give_the_batch_of_the_same_steps_sampled_here(settings: str, kind: str) -> None:
    # A filter has also seen the observation that waits when the first fragment closes.
    here, played = sampled_here(settings, kind, 1 if "filter" in settings else 2)
    with server(kind, settings, batch_mode="complete_episodes") as one, one.voice() as voice:
        for batch, episodes in zip(here, played, strict=True):
            voice.bring(*episodes)
            there = one.algo.sample()["default_policy"]
            assert set(there) == set(batch)
            check_same([batch], [there])


# The statistics of a filter settle with each fragment.
@pytest.mark.slow_unless("closed between-3-*", "*-1-lstm-*")
@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [name for name in SETTINGS if "filter" not in name])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("between", [True, False], ids=["closed between", "in one fragment"])
def test_an_episode_may_arrive_in_chunks_even_if_the_fragment_closes_between_them(
    settings: str, kind: str, size: int, between: bool
) -> None:
    here, played = sampled_here(settings, kind, 2)
    whole = [one for episodes in played for one in episodes]
    steps = sum(len(one["actions"]) for one in whole)
    lines = [
        parts({**one, "id": f"{number}"}, *range(size, len(one["actions"]), size))
        for number, one in enumerate(whole)
    ]
    there = []
    with server(kind, settings, rollout_fragment_length=1 if between else steps) as one, one.voice() as voice:
        for turn in range(max(map(len, lines))):
            for line in lines:
                voice.bring(*line[turn : turn + 1])
                if between and line[turn:]:
                    there.append(one.algo.sample())
        there += [] if between else [one.sample(steps)]
    batches = [batch["default_policy"] for batch in there if "default_policy" in batch]
    assert sum(batch.count for batch in batches) == steps
    check_same(here, batches, ("advantages", "value_targets"))


def test_chunks_and_calls_fill_one_fragment_together() -> None:
    _, (played,) = sampled_here("plain", "discrete", 1)
    with server("discrete", algorithm=DQN) as one, one.voice() as voice:
        # The first one is 3 steps long, the second one 4.
        voice.bring(played[0])
        turns = Turns(voice, "e")
        for step in range(13):
            turns.say("LOG_ACTION", observation=[500, step], action=0, reward=1.0)
        turns.end([500, 13])
        voice.bring(played[1])
        batch = one.algo.sample()
    own = batch["default_policy"]
    assert sorted(own.segments.lengths.tolist()) == [3, 4, 13]
    assert own["off_policy"].sum() == 13
    assert batch.env_steps() == 20


@pytest.mark.parametrize("closed", [True, False], ids=["after the fragment", "in it"])
def test_a_lost_episode_ends_with_the_observation_that_waits(closed: bool) -> None:
    _, (played,) = sampled_here("plain", "discrete", 1)
    long = max(played, key=lambda one: len(one["actions"]))
    with server("discrete", algorithm=DQN, rollout_fragment_length=3) as one:
        for samples in (closed, False):
            with one.voice() as voice:
                voice.bring(parts(long, 3)[0])
                if samples:
                    first = one.algo.sample()["default_policy"]
                    assert first["truncateds"].tolist() == [False] * 3
            assert eventually(lambda: not one.status["open_episodes"])
        lost = one.algo.sample()["default_policy"].split_by_episode()
    for piece in lost:
        np.testing.assert_array_equal(piece["new_obs"][-1], long["obs"][3])
        assert piece["rewards"].tolist() == long["rewards"][:3]
        assert piece["truncateds"].tolist() == [False, False, True]


def batch_of(kind: str, episodes: Sequence[Any], size: int | None = None, **config: Any) -> Any:
    """Send whole episodes, or chunks of them; return the rows."""
    steps = sum(len(one["actions"]) for one in episodes)
    with server(kind, rollout_fragment_length=steps, **config) as one, one.voice() as voice:
        for number, whole in enumerate(episodes):
            cuts = range(size or len(whole["actions"]), len(whole["actions"]), size or 1)
            for part in parts({**whole, "id": f"{number}"}, *cuts):
                voice.bring(part)
        return one.algo.sample()["default_policy"]


def normal_logp(actions: Any, inputs: Any) -> Any:
    means, log_stds = np.split(inputs, 2, 1)
    z = (actions - means) / np.exp(log_stds)
    return (-0.5 * z**2 - log_stds - 0.5 * np.log(2 * np.pi)).sum(1)


def choice_logp(actions: Any, inputs: Any) -> Any:
    chances = np.exp(inputs) / np.exp(inputs).sum(1, keepdims=True)
    return np.log(chances[np.arange(len(actions)), actions])


@pytest.mark.parametrize("kind", KINDS)
def test_given_probabilities_are_used_and_the_others_are_computed(kind: str) -> None:
    """Half the width of the Box is 5 in one dimension and 2 in the other: log 10 more in the network's own form."""
    (here,), (played,) = sampled_here("plain", kind, 1)
    scale, logp_of = (np.log(10.0), normal_logp) if kind == "box" else (0.0, choice_logp)
    ways = [{"logp"}, {"inputs"}, set[str](), {"logp", "inputs"}]
    sent = []
    for number, one in enumerate(played):
        count, more = len(one["actions"]), dict[str, Any]()
        if "logp" in ways[number % 4]:
            more["action_logp"] = [-3.25 - number] * count
        if "inputs" in ways[number % 4]:
            row = [7.5, 0.0, np.log(5.0), 0.0] if kind == "box" else [0.5, 1.0, 1.5]
            more["action_dist_inputs"] = [row] * count
        sent.append({**one, **more})
    assert len(sent) >= 4
    pieces = {piece["rewards"].tobytes(): piece for piece in batch_of(kind, sent).split_by_episode()}
    for number, own in enumerate(here.split_by_episode()):
        its, way = pieces[own["rewards"].tobytes()], ways[number % 4]
        assert "off_policy" not in its or not its["off_policy"].any()
        inputs = own["action_dist_inputs"]
        if "inputs" in way:
            row = [0.5, -0.5, 0.0, -np.log(2.0)] if kind == "box" else [0.5, 1.0, 1.5]
            inputs = np.tile(np.array(row, np.float32), (own.count, 1))
        np.testing.assert_allclose(its["action_dist_inputs"], inputs, rtol=1e-4, atol=1e-6)
        if "logp" in way:
            np.testing.assert_allclose(its["action_logp"], -3.25 - number + scale, rtol=1e-6)
        else:
            expected = logp_of(own["actions"], inputs)
            np.testing.assert_allclose(its["action_logp"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [None, 2])
def test_given_states_are_used_and_the_others_follow_from_the_observations(size: int | None) -> None:
    (here,), (played,) = sampled_here("lstm", "discrete", 1)
    names = [name for name in here if name.startswith("state_in_")]
    states = [np.concatenate([piece[name] for name in names], 1) for piece in here.split_by_episode()]
    its = {}
    for kind, columns in (
        ("told", [{"state_in": state.tolist()} for state in states]),
        ("follow", [{}] * len(states)),
        ("other", [{"state_in": (state + 1).tolist()} for state in states]),
    ):
        sent = [{**one, **more} for one, more in zip(played, columns, strict=True)]
        its[kind] = batch_of("discrete", sent, size, settings="lstm")
    assert len(names) == 4
    for name in names:
        np.testing.assert_array_equal(its["told"][name], its["follow"][name])
        np.testing.assert_array_equal(its["other"][name], its["told"][name] + 1)
        np.testing.assert_array_equal(np.sort(its["told"][name], 0), np.sort(here[name], 0))
    told_logp, own_logp = (np.sort(batch["action_logp"]) for batch in (its["told"], here))
    np.testing.assert_allclose(told_logp, own_logp, rtol=1e-4, atol=1e-6)
