"""One grid: what a policy does by torch, by ONNX Runtime, from its folder and as a file of plain ONNX."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from menv import Policy, export_onnx, local_policy_inference
from menv.inference.golden import columns
from menv.spaces import paths
from tests.bundles.cases import ALL, BY_AGENT, MODULES, Herd, algorithm_of, observations, same

ROWS = 9
ONCE = {
    "train_batch_size": 48,
    "rollout_fragment_length": 24,
    "num_envs_per_worker": 2,
    "sgd_minibatch_size": 24,
}
BY_DEFAULT = (
    "mlp", "nested", "masked components", "continuous", "squashed", "clipped", "nested actions", "masked and mixed",
    "lstm", "gru", "masked picture", "picture through an lstm", "worth", "group", "agent ids", "frames: own module",
    *(f"frames: {name}" for name in ("vector", "masked", "continuous", "lstm", "picture", "worth")),
    "frames: behind running means", "running means",
)  # fmt: skip


def in_batches(policies: list[Any], explore: bool | None) -> list[list[Any]]:
    """Return what each policy answers to batches of several sizes, three steps each, its own states before them."""
    answers: list[list[Any]] = [[] for _ in policies]
    for rows in (1, 2, 7):
        for policy, own in zip(policies, answers, strict=True):
            states: list[Any] = []
            for step in range(3):
                shown = observations(policy, rows, seed=10 * rows + step)
                actions, states, fetches = policy.compute_actions(shown, states, explore=explore)
                own += [(action, {}) for action in actions] + [(states, fetches)]
    return answers


def along_lives(policies: list[Any], explore: bool | None) -> list[list[Any]]:
    """Return what each policy answers along two episodes at a time, which go where the first one leads."""
    spaces = policies[0].observation_space, policies[0].action_space
    envs = [Herd(*spaces) for _ in range(2)]
    answers: list[list[Any]] = [[] for _ in policies]
    for episode in range(2):
        shown = [env.reset(seed=10 * episode + number)[0] for number, env in enumerate(envs)]
        over: list[dict[str, bool]] = [{}, {}]
        for _ in range(10):
            for number, env in enumerate(envs):
                agents, obs = list(shown[number]), list(shown[number].values())
                every = over[number].get("__all__", False)
                ends = [over[number].get(agent, False) or every for agent in agents]
                asked: dict[str, Any] = {"env_id": number, "agent_id": agents, "obs": obs, "terminated": ends}
                told = [local_policy_inference(policy, explore=explore, **asked) for policy in policies]
                for own, each in zip(answers, told, strict=True):
                    own += [(action, {"state": state, **fetches}) for action, state, fetches in each]
                if not every:
                    taken = {
                        agent: one[0]
                        for agent, one, end in zip(agents, told[0], ends, strict=True)
                        if not end
                    }
                    shown[number], _, over[number], _, _ = env.step(taken)
    return answers


def close(left: Any, right: Any) -> None:
    """See that two answers are equal but for rounding."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        left, right = list(left.values()), list(right.values())
    if isinstance(left, tuple | list):
        for one, other in zip(left, right, strict=True):
            close(one, other)
    else:
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.slow_unless(*BY_DEFAULT)
@pytest.mark.parametrize("kind", [*ALL, "group"])
def test_torch_onnx_runtime_the_folder_and_the_file_of_a_policy_do_the_same(
    kind: str, tmp_path: Path
) -> None:
    by_agent = kind in BY_AGENT or kind.startswith("frames")
    with ExitStack() as stack:
        made = [stack.enter_context(algorithm_of(kind, inference="torch"))]
        if kind not in MODULES:
            made.append(stack.enter_context(algorithm_of(kind)))
        if "running means" in kind:
            made = [
                stack.enter_context(algorithm_of(kind, **ONCE, inference=name)) for name in ("torch", "onnx")
            ]
            for algorithm in made:
                algorithm.train()
            made[0].set_weights(made[1].get_weights())
        policies: list[Any] = [one.get_policy(next(iter(one.get_weights()))) for one in made]
        assert {*made[0].inference.values()} == {"torch"}
        live = policies[-1]
        made[-1].export_policy_checkpoint(tmp_path / "policy", live.policy_id)
        loaded: Any = Policy.from_checkpoint(tmp_path / "policy")
        assert (loaded.observation_space, loaded.action_space) == (live.observation_space, live.action_space)
        assert same(loaded.get_initial_state(), live.get_initial_state())
        if kind not in MODULES:
            assert same(loaded.get_weights(), live.get_weights())
        assert loaded.get_weights().keys() == live.get_weights().keys()
        assert str(loaded.agent_connectors) == str(live.agent_connectors)
        assert loaded.agent_connectors.to_state() == live.agent_connectors.to_state()
        for explore in (False, None):
            by_torch, *by_onnx = (along_lives if by_agent else in_batches)([*policies, loaded], explore)
            assert all(same(by_onnx[0], one) for one in by_onnx)
            close(by_torch, by_onnx[0])
            acted = [action for action, fetches in by_torch if "state" in fetches or not fetches]
            assert len({*map(str, acted)}) > 1, "the policy tells observations apart"
            if not kind.endswith("as it is"):
                assert all(live.action_space.contains(action) for action in acted)
        (check_file_of_lives if by_agent else check_file)(live, tmp_path)


def opened(policy: Any, path: Path, explore: bool) -> Any:
    """Return what answers a feed by name, of the file of a policy."""
    assert export_onnx(policy, path, explore=explore) == path
    onnx.checker.check_model(path, full_check=True)
    session = ort.InferenceSession(path)
    names = [given.name for given in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(names, feed), strict=True))


def named(what: str, space: Any, values: list[Any]) -> dict[str, Any]:
    names = [".".join((what, *map(str, keys))) for keys, _ in paths(space)]
    return dict(zip(names, columns(space, values), strict=True))


def check_file(policy: Any, folder: Path) -> None:
    """See that a file takes raw observations and gives env-ready actions, drawn ones too."""
    networks, shown = policy.networks, observations(policy, ROWS)
    rng, size = np.random.default_rng(0), sum(policy.networks.state_sizes)
    noise = networks.backend.head.sample_noise(rng, ROWS)
    state = rng.random((ROWS, size), np.float32) if size else None
    rows, mask = networks.preprocess(shown)
    for explore in (False, True):
        draws = noise if explore else None
        decision = networks.backend.decide(rows, mask, draws, policy.index, state)
        wanted = named("action", policy.action_space, list(networks.output(decision.actions)))
        if size:
            wanted["state_after"] = decision.state
        more = {key: value for key, value in (("noise", draws), ("state", state)) if value is not None}
        feed = {**named("obs", policy.observation_space, shown), **more}
        found = opened(policy, folder / f"{explore}.onnx", explore)(feed)
        assert list(found) == list(wanted)
        assert [one.dtype for one in found.values()] == [one.dtype for one in wanted.values()]
        close(found, wanted)


def check_file_of_lives(policy: Any, folder: Path) -> None:
    """See that a file that is given three frames, or the code of an agent, does what the policy does step by step."""
    opened(policy, folder / "drawn.onnx", explore=True)
    answer = opened(policy, folder / "greedy.onnx", explore=False)
    shown = observations(policy, ROWS)
    space, size = policy.observation_space, sum(policy.networks.state_sizes)
    file = ort.InferenceSession(folder / "greedy.onnx")
    by_code = "agent" in [given.name for given in file.get_inputs()]
    stacked = "FrameStack" in str(policy.agent_connectors)
    frames = np.maximum(np.arange(ROWS)[:, None] + np.arange(-2, 1), 0)
    feed = {
        name: column[frames] if stacked and "action_mask" not in name else column
        for name, column in named("obs", space, shown).items()
    }
    assert not stacked or file.get_modelmeta().custom_metadata_map["frames"] == "3"
    for place, agent in enumerate("abcd"):
        state = np.zeros((1, size), np.float32)
        for row, obs in enumerate(shown):
            ((wanted, _, _),) = local_policy_inference(policy, 9, agent, obs, explore=False)
            own = {name: column[row : row + 1] for name, column in feed.items()}
            more = (
                {"state": state}
                if size
                else {"agent": np.eye(4, 3, dtype=np.float32)[[place]]}
                if by_code
                else {}
            )
            found = answer({**own, **more})
            state = found.pop("state_after", state)
            close(found, named("action", policy.action_space, [wanted]))
