"""Policies of every kind of head, space and memory, their weights lively enough to tell observations apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from menv.algorithms import DQN, PPO, QMIX, SAC
from menv.algorithms.algorithm import Algorithm
from menv.policy import Policy
from menv.serialization import space_from_json, space_to_json
from tests.algorithms.test_custom_model import Eye, Net
from tests.algorithms.test_custom_model_state import QRemembering
from tests.worlds import Alone, Several

_spaces = gym.spaces
VECTOR = _spaces.Box(-1.0, 1.0, (3,), np.float32)
PICTURE = _spaces.Box(0, 255, (10, 10, 1), np.uint8)
NESTED = _spaces.Dict({
    "a": _spaces.Discrete(3, start=1),
    "b": _spaces.Tuple([_spaces.Box(-1.0, 1.0, (2, 2), np.float64), _spaces.MultiDiscrete([2, 3], start=[1, -1])]),
    "c": _spaces.MultiBinary(2),
    "d": _spaces.Box(-5, 5, (2,), np.int32),
})  # fmt: skip
MASKED = _spaces.Dict({"action_mask": _spaces.MultiBinary(4), "seen": VECTOR})
MASKED_PICTURE = _spaces.Dict({"action_mask": _spaces.Box(0, 1, (4,), np.int8), "seen": PICTURE})
FOUR = _spaces.Discrete(4, start=-1)
DRIVING = _spaces.Dict({
    "gear": _spaces.Tuple([_spaces.Box(0.0, 1.0, (), np.float64), _spaces.Discrete(2, start=1)]),
    "steer": _spaces.Box(-2.0, 4.0, (2,), np.float32),
    "stop": _spaces.MultiDiscrete([2], dtype=np.int8),
})  # fmt: skip
LIMITED = _spaces.Box(np.array([0.0, -np.inf], np.float32), np.array([6.0, 1.0], np.float32))


class Case(NamedTuple):
    """One kind of policy."""

    algorithm: type[Algorithm]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    settings: dict[str, Any] = {}  # noqa: RUF012 - it is only read
    model: dict[str, Any] = {}  # noqa: RUF012


class Seen(Net):
    """Takes a part of the observations, and a number of its own that is not learned."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space["seen"], num_outputs)
        self.register_buffer("scale", 2 * self.body.bias.detach().mean() + 3)
        self.policy.bias.requires_grad_(False)

    def forward(self, obs: Any) -> Any:
        return super().forward(obs["seen"] * self.scale)


LSTM = {"use_lstm": True, "lstm_cell_size": 5}
SMALL_EYE = {"conv_filters": [[4, 3, 2]]}
CASES = {
    "mlp": Case(PPO, VECTOR, _spaces.Discrete(2)),
    "three choices": Case(PPO, _spaces.Discrete(5, start=3), _spaces.Discrete(3)),
    "nested": Case(PPO, NESTED, _spaces.MultiDiscrete([2, 3], start=[0, 5])),
    "masked": Case(PPO, MASKED, FOUR),
    "masked components": Case(PPO, MASKED, _spaces.MultiDiscrete([2, 2])),
    "continuous": Case(PPO, VECTOR, LIMITED),
    "squashed": Case(SAC, VECTOR, LIMITED),
    "squashed numbers": Case(
        SAC, VECTOR, _spaces.Tuple([_spaces.Box(0.0, 6.0, (2,)), _spaces.Box(-1.0, 1.0, (), np.float64)])
    ),
    "wide continuous": Case(PPO, VECTOR, _spaces.Box(0.0, 6.0, (2, 2), np.float64)),
    "as it is": Case(PPO, VECTOR, LIMITED, {"normalize_actions": False}),
    "clipped": Case(PPO, VECTOR, LIMITED, {"normalize_actions": False, "clip_actions": True}),
    "one number": Case(PPO, _spaces.Box(-1, 1, ()), _spaces.Box(-1.0, 1.0, (), np.float32)),
    "nested actions": Case(
        PPO,
        VECTOR,
        _spaces.Dict({"x": _spaces.Discrete(2), "y": _spaces.MultiDiscrete([2, 3], dtype=np.int32)}),
    ),
    "nested numbers": Case(
        PPO, VECTOR, _spaces.Tuple([_spaces.Box(0.0, 6.0, (2,)), _spaces.Box(-1.0, 1.0, (), np.float64)])
    ),
    "mixed": Case(
        PPO, VECTOR, _spaces.Tuple([LIMITED, _spaces.Discrete(3, start=5), _spaces.MultiDiscrete([2, 3])])
    ),
    "masked and mixed": Case(PPO, MASKED, DRIVING),
    "mixed as it is": Case(PPO, VECTOR, DRIVING, {"normalize_actions": False}),
    "lstm of mixed ones": Case(PPO, MASKED, DRIVING, model=LSTM),
    "lstm": Case(PPO, VECTOR, FOUR, model=LSTM),
    "gru": Case(PPO, MASKED, FOUR, model={"use_gru": True, "lstm_cell_size": 5, "vf_share_layers": True}),
    "lstm of numbers": Case(PPO, VECTOR, LIMITED, model=LSTM),
    "picture": Case(PPO, PICTURE, FOUR, model=SMALL_EYE),
    "masked picture": Case(PPO, MASKED_PICTURE, FOUR, model=SMALL_EYE),
    "picture in floats": Case(PPO, _spaces.Box(-1.0, 1.0, (8, 8, 2), np.float32), FOUR, model=SMALL_EYE),
    "picture through an lstm": Case(PPO, PICTURE, FOUR, model={**SMALL_EYE, **LSTM}),
    "worth": Case(DQN, VECTOR, FOUR, {"dueling": True}),
    "masked worth": Case(DQN, MASKED, FOUR, {"dueling": False}),
    "worth with a memory": Case(DQN, VECTOR, FOUR, model=LSTM),
}


FRAMES = {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})]}
STACKS = {
    "vector": Case(PPO, VECTOR, FOUR, FRAMES),
    **{
        name: CASES[name]._replace(settings={**CASES[name].settings, **FRAMES})
        for name in ("nested", "masked", "continuous", "lstm", "picture", "picture in floats", "worth")
    },
    "picture of three colours": Case(PPO, _spaces.Box(0, 255, (8, 8, 3), np.uint8), FOUR, FRAMES, SMALL_EYE),
    "masked picture through an lstm": Case(PPO, MASKED_PICTURE, FOUR, FRAMES, {**SMALL_EYE, **LSTM}),
    "behind running means": Case(PPO, VECTOR, FOUR, {**FRAMES, "observation_filter": "MeanStdFilter"}),
}
"""Policies that see several observations of a life at once."""
BY_AGENT = {
    **{f"frames: {name}": case for name, case in STACKS.items()},
    "agent ids": Case(PPO, VECTOR, FOUR, {"agent_ids": True}),
    "running means": Case(PPO, VECTOR, FOUR, {"observation_filter": "MeanStdFilter"}),
}
MODULES = {
    "own module, masked": Case(PPO, MASKED, FOUR, model={"custom_model": Seen}),
    "frames: own module": Case(PPO, VECTOR, LIMITED, FRAMES, {"custom_model": Net}),
    "own module, picture": Case(PPO, PICTURE, FOUR, model={"custom_model": Eye}),
    "own module, worth with a memory": Case(DQN, VECTOR, FOUR, model={"custom_model": QRemembering}),
}
ALL = {**CASES, **BY_AGENT, **MODULES}


class Spaces(Alone):
    """Shows samples of its space."""

    length = 1

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space

    def see(self) -> Any:
        return sample(self.observation_space, self.np_random)


class Pair(Several):
    """Two agents that observe masks; a group for QMIX."""

    possible_agents = ("ann", "bob")
    observation_space = _spaces.Dict({**MASKED.spaces, "state": _spaces.MultiBinary(3)})
    action_space = FOUR

    def see(self, agent: Any) -> Any:
        return sample(self.observation_space, self.rng)


class Herd(Several):
    """Three agents: "b" dies early and comes back, "c" is asked every other step."""

    possible_agents, length = ("a", "b", "c"), 9

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, action_space)

    def shown(self) -> Any:
        agents = ("a" if self.at in (4, 5) else "ab") + ("c" if self.at % 2 == 0 else "")
        return "abc" if self.at == self.length else agents

    def dead(self, actions: Any) -> Any:
        return "b" if self.at == 3 else ""

    def see(self, agent: Any) -> Any:
        return sample(self.get_observation_space(agent), self.rng)


def algorithm_of(name: str, **more: Any) -> Algorithm:
    """Return an algorithm with one policy of a case, or QMIX of a group; it has not learned."""
    if name == "group":
        made: Algorithm = QMIX(
            env=lambda context: Pair().with_agent_groups({"team": ["ann", "bob"]}),
            config={"seed": 3, "model": {"fcnet_hiddens": [8]}, **more},
        )
    else:
        case = ALL[name]
        world: Any = Herd if name in BY_AGENT else Spaces
        made = case.algorithm(
            env=lambda context: world(case.observation_space, case.action_space),
            config={"seed": 3, **case.settings, **more, "model": {"fcnet_hiddens": [8], **case.model}},
        )
    livelier(made)
    return made


def livelier(algorithm: Algorithm) -> None:
    """Give an algorithm weights that tell observations apart."""
    rng = np.random.default_rng(5)
    for policy_id, weights in algorithm.get_weights().items():
        lively = {key: _lively(value, rng) for key, value in weights.items()}
        if "epsilon" in lively:
            lively["epsilon"][:] = 0.5
        algorithm.set_weights({policy_id: lively})


def _lively(weight: Any, rng: np.random.Generator) -> Any:
    fan = {2: weight.shape[0], 4: int(np.prod(weight.shape[1:]))}.get(weight.ndim, 9)
    return (rng.standard_normal(weight.shape) * 1.5 / np.sqrt(fan)).astype(np.float32)


KINDS = [*CASES, "group"]


def sample(space: Any, rng: np.random.Generator) -> Any:
    """Return an element of a space; its masks allow the first choice of each half."""
    own: Any = space_from_json(space_to_json(space))
    own.seed(int(rng.integers(1 << 30)))
    return _allowed(own.sample())


def _allowed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_allowed(part) for part in value)
    if isinstance(value, dict) and "action_mask" in value:
        value["action_mask"][[0, 2]] = 1
    return value


def observations(policy: Policy, rows: int, seed: int = 0) -> list[Any]:
    """Return observations of a policy's space."""
    rng = np.random.default_rng(seed)
    return [sample(policy.observation_space, rng) for _ in range(rows)]


def same(left: Any, right: Any) -> bool:
    """Return whether two actions, or whatever policies return, are equal to the last bit, type included."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(
            same(one, other) for one, other in zip(left, right, strict=True)
        )
    one, other = np.asarray(left), np.asarray(right)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
