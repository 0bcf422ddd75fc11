"""A policy on disk: a folder that holds everything that acts, and no code.

`NetPolicy.export_checkpoint` writes it, `Policy.from_checkpoint` reads it. The manifest says what is around the graphs:
spaces, connectors, recurrent layout, action head. `bundle_files` keeps the folder whole, `golden` says what the policy
has to answer. Nothing here knows how policies are trained; what is read is data, never a name to import.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from safetensors.numpy import load, save

import menv
from menv.acting.acting_graphs import ActingGraphs, GraphKind
from menv.acting.action_head import ActionHead
from menv.acting.backend import ActingBackend, Floats
from menv.acting.built_graphs import StoredGraphs
from menv.acting.model_scan import refuse_costly_model, refuse_unsafe_model
from menv.acting.onnx_acting import OnnxActing
from menv.connectors.action_output import ActionOutput
from menv.connectors.connector_context import ConnectorContext
from menv.connectors.default_pipelines import (
    action_pipeline,
    action_plan,
    agent_pipeline,
    leaf_connectors,
)
from menv.connectors.flat_actions import flat_action_space
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import ActionConnectorPipeline, AgentConnectorPipeline
from menv.connectors.policy_connectors import PolicyConnectors
from menv.errors import ConfigError, UnknownNameError
from menv.loop import bundle_files
from menv.loop.bundle_files import ACTING, EVALUATE, GOLDEN, GREEDY, MANIFEST, WEIGHTS
from menv.loop.connector_path import plain
from menv.loop.golden import MOST_ROWS, answer, difference, make_golden, rehearsal
from menv.loop.net_policy import NetPolicy
from menv.loop.networks import Networks, OfOne
from menv.loop.noise import Noise
from menv.loop.unsound import check_weights
from menv.plain_data import check_header
from menv.policy_spec import check_policy_id
from menv.spaces_json import SpaceDecoder, space_to_json

_GRAPHS: dict[GraphKind, str] = {"act": ACTING, "greedy": GREEDY, "evaluate": EVALUATE}
_MOST_STATES, _MOST_STATE = 64, 1 << 24
_MOST_NAME = 200
_PREPROCESSOR, _NORMALIZE, _CLIP = "ObsPreprocessor", "NormalizeActions", "ClipActions"
_FULL_NAMES = {
    _PREPROCESSOR: "ObsPreprocessorConnector",
    _NORMALIZE: "NormalizeActionsConnector",
    _CLIP: "ClipActionsConnector",
}
"""What stands for the usual connectors in a manifest, and their registered names."""
P = TypeVar("P", AgentConnectorPipeline, ActionConnectorPipeline)


@dataclass
class StoredNetworks(OfOne):
    """Those of a policy from a folder."""

    stored: StoredGraphs

    @property
    def row_width(self) -> int:
        """F, the numbers in a row that the networks take."""
        return self.backend.obs_size

    @functools.cached_property
    def row_dtype(self) -> np.dtype[Any]:
        """Their type."""
        return self.connectors[0].rows_of(self.observation_space).row_dtype

    def graphs(self) -> ActingGraphs:
        """Return the graphs as they lay in the folder."""
        return self.stored


class Rehearsals:
    """Graphs, and what runs them, for policies that are written one after the other: made once for each network."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[dict[GraphKind, bytes], OnnxActing]] = {}

    def of(
        self, networks: Networks, graphs: ActingGraphs, weights: Mapping[str, Floats]
    ) -> tuple[dict[GraphKind, bytes], OnnxActing]:
        """Return serialised models by kind, and a back-end whose policy 0 may have other weights."""
        if id(networks) not in self._made:
            masked = networks.preprocess is not None and networks.preprocess.mask_width > 0
            models = {kind: graphs.build(kind, False, masked) for kind in _GRAPHS}
            self._made[id(networks)] = models, rehearsal(networks, StoredGraphs(models), weights)
        return self._made[id(networks)]


def write_policy(
    policy: NetPolicy, folder: Path, trained: Mapping[str, Any], rehearsals: Rehearsals | None = None
) -> Path:
    """Write a policy into a new folder and return that; see `Policy.export_checkpoint`.

    Args:
        policy: Any whose network has acting graphs.
        folder: Must not exist.
        trained: JSON values.
        rehearsals: Those of the policies that were written before; their networks still live.
    """
    bundle_files.refuse_existing(folder)
    bundle_files.write_folder(folder, policy_files(policy, trained, rehearsals))
    return folder


def policy_files(
    policy: NetPolicy, trained: Mapping[str, Any], rehearsals: Rehearsals | None = None
) -> dict[str, bytes]:
    """Return the bytes of the manifest of a policy and of each of its files, by name; see `write_policy`.

    Raises:
        ConfigError: The policy has no form on disk.
    """
    where, networks = f"policy {policy.policy_id!r}", policy.networks
    graphs = networks.graphs()
    if graphs is None:
        raise ConfigError(
            f"{where}: its network has no acting graphs, expected one that has; describe it by fcnet_hiddens, "
            "conv_filters, use_lstm or custom_model, or save get_weights() with safetensors"
        )
    weights = networks.backend.get_weights(policy.index)
    models, acting = (rehearsals or Rehearsals()).of(networks, graphs, weights)
    for kind, model in models.items():
        refuse_costly_model(model, f"{where}, {_GRAPHS[kind]}")
    output = networks.connectors[policy.index].output(networks.action_space)
    golden = make_golden(networks, acting, weights, output=output)
    wrong = difference(golden, answer(networks, _One(networks.backend, policy.index), golden, output))
    if wrong:
        raise ConfigError(
            f"{where}: its ONNX graphs disagree with what runs it now ({wrong}), expected equal answers; train it with "
            '"inference": "onnx" to see where'
        )
    files = {
        WEIGHTS: save({name: np.ascontiguousarray(value) for name, value in weights.items()}),
        GOLDEN: save({name: np.ascontiguousarray(value) for name, value in golden.items()}),
        **{_GRAPHS[kind]: model for kind, model in models.items()},
    }
    return {MANIFEST: bundle_files.manifest_text(_manifest(policy, trained), files), **files}


def read_policy(folder: Path) -> NetPolicy:
    """Return the policy in a folder.

    Raises:
        ConfigError: Something is missing, damaged, newer than this version, or not what it should be.
    """
    return policy_of(*bundle_files.read_folder(folder), f"{folder}")


def policy_of(manifest: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> NetPolicy:
    """Return the policy in files whose hashes have been checked; `where` begins the messages.

    Raises:
        ConfigError: It is not what it should be.
    """
    for name in _GRAPHS.values():
        refuse_unsafe_model(files[name], f"{where}/{name}")
        refuse_costly_model(files[name], f"{where}/{name}")
    try:
        for name in (WEIGHTS, GOLDEN):
            check_header(files[name])
        networks = _networks(manifest, files, f"{where}/{MANIFEST}")
        golden = load(files[GOLDEN])
        few = all(value.shape and len(value) <= MOST_ROWS for value in golden.values())
        _require(f"{where}/{GOLDEN}", "rows", few)
        remembered = golden["state"].shape[1:] if "state" in golden else (0,)
        _require(f"{where}/{MANIFEST}", "state_sizes", remembered == (sum(networks.state_sizes),))
        wrong = difference(golden, answer(networks, networks.backend, golden))
    except ConfigError:
        raise
    except Exception as error:
        # Hashes are right, so somebody wrote it so; what ONNX Runtime and numpy raise then is of any kind.
        why = str(error).replace("\n", " ")
        raise ConfigError(
            f"{where}: cannot act ({type(error).__name__}: {why:.120}), expected files that belong together; export "
            "the policy again"
        ) from error
    if wrong:
        raise ConfigError(
            f"{where}/{GOLDEN}: {wrong}, expected what the policy answered as it was written with {_with(manifest)}; "
            f"here it is {_versions()}: install those versions, or export the policy again"
        )
    policy = NetPolicy(networks, 0, {}, manifest["seed"])
    policy.explore = manifest.get("explore") is not False
    return policy


class _One:
    """A back-end whose policy 0 is one of several of another."""

    def __init__(self, backend: ActingBackend, index: int) -> None:
        self._backend = backend
        self._index = index

    def decide(self, obs: Any, mask: Any, noise: Any, which: int, state: Any) -> Any:
        return self._backend.decide(obs, mask, noise, self._index, state)

    def evaluate(self, policy: int, obs: Any, mask: Any, actions: Any, state: Any) -> Any:
        return self._backend.evaluate(self._index, obs, mask, actions, state)


def _manifest(policy: NetPolicy, trained: Mapping[str, Any]) -> dict[str, Any]:
    networks = policy.networks
    own = networks.connectors[policy.index]
    assert networks.preprocess is not None
    usual = plain(own, networks.built)
    return {
        "policy_id": policy.policy_id,
        "observation_space": space_to_json(networks.observation_space),
        "action_space": space_to_json(networks.action_space),
        "agent_connectors": [[_PREPROCESSOR, {}]] if usual else own.agent.to_state()[1],
        "action_connectors": [
            [name, {}]
            for name, wanted in ((_NORMALIZE, networks.output.normalize), (_CLIP, networks.output.clip))
            if wanted
        ]
        if usual
        else own.action.to_state()[1],
        "head": networks.backend.head.to_json(),
        "mask_width": networks.preprocess.mask_width,
        "row_width": networks.row_width,
        "state_sizes": list(networks.state_sizes),
        "seed": int(policy.seed),
        "explore": policy.explore,
        "trained": {"algorithm": policy.algorithm, "env_steps": None, **trained},
        "written_with": _versions(),
    }


def _networks(manifest: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> StoredNetworks:
    missing = {"policy_id", "head", "mask_width", "seed"} - set(manifest)
    if missing or type(manifest["seed"]) is not int:
        raise ConfigError(
            f"{where}: no or a wrong {sorted(missing) or 'seed'}, expected all entries; export the policy again"
        )
    spaces = SpaceDecoder()
    observation_space = spaces.read(manifest.get("observation_space"), f"{where}, observation_space")
    action_space = spaces.read(manifest.get("action_space"), f"{where}, action_space")
    preprocess = ObsPreprocessor(observation_space, action_space)
    head, state_sizes = (
        ActionHead.from_json(manifest["head"]),
        _state_sizes(manifest.get("state_sizes"), where),
    )
    states = [np.zeros(size, np.float32) for size in state_sizes]
    ctx = ConnectorContext({}, states, observation_space, action_space, is_policy_recurrent=bool(states))
    connectors = _connectors(manifest, ctx, where)
    plan = action_plan(connectors.action)
    output = ActionOutput(action_space, normalize=plan.normalize, clip=plan.clip)
    _require(where, "head", _fits(head, output.space))
    _require(where, "mask_width", manifest["mask_width"] == preprocess.mask_width)
    _require(where, "mask_width", preprocess.mask_width in (0, head.mask_width))
    graphs = StoredGraphs({kind: files[name] for kind, name in _GRAPHS.items()})
    weights: dict[str, Floats] = load(files[WEIGHTS])
    _require(where, "weights", all(value.dtype == np.float32 for value in weights.values()))
    check_weights(f"{manifest['policy_id']!s:.60}", weights)
    backend = OnnxActing(graphs, head, [weights], sum(state_sizes))
    _require(where, "row_width", manifest.get("row_width") == backend.obs_size)
    _require(where, "agent_connectors", _widens_to(connectors, observation_space, backend.obs_size))
    return StoredNetworks(
        policy_ids=[check_policy_id(manifest["policy_id"])],
        observation_space=observation_space,
        action_space=action_space,
        preprocess=preprocess,
        backend=backend,
        output=output,
        noise=Noise(head.draw, head.noise_width),
        state_sizes=state_sizes,
        connectors=[connectors],
        built=plan,
        stored=graphs,
    )


def _widens_to(connectors: PolicyConnectors, space: gym.Space[Any], width: int) -> bool:
    """Return whether agent connectors make rows of a width, as far as anybody knows: a user's own need not tell."""
    known = all(leaf.takes_rows for leaf in leaf_connectors(connectors.agent))
    return not known or connectors.agent.space(space, 0)[1] == width


def _connectors(manifest: Mapping[str, Any], ctx: ConnectorContext, where: str) -> PolicyConnectors:
    """Return the pipelines of a policy.

    Raises:
        ConfigError: One of the connectors is not known here, or its state is none.
    """
    listed = {kind: _listed(manifest, kind, where) for kind in ("agent_connectors", "action_connectors")}
    agent, action = listed["agent_connectors"], listed["action_connectors"]
    names = [name for name, _ in action]
    if [name for name, _ in agent] == [_PREPROCESSOR] and set(names) <= {_NORMALIZE, _CLIP}:
        # The pipelines of a policy whose settings are the usual ones.
        built = action_pipeline(ctx, normalize=_NORMALIZE in names, clip=_CLIP in names)
        return PolicyConnectors(agent_pipeline(ctx), built)
    known = [(_FULL_NAMES.get(name, name), params) for name, params in agent]
    return PolicyConnectors(
        _restored(AgentConnectorPipeline, ctx, known, f"{where}: agent_connectors"),
        _restored(
            ActionConnectorPipeline,
            ctx,
            [(_FULL_NAMES.get(name, name), params) for name, params in action],
            f"{where}: action_connectors",
        ),
    )


def _restored(kind: type[P], ctx: ConnectorContext, listed: Sequence[Any], where: str) -> P:
    try:
        return kind.from_state(ctx, listed)
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}") from error


def _listed(manifest: Mapping[str, Any], kind: str, where: str) -> list[Any]:
    listed = manifest.get(kind)
    right = isinstance(listed, list) and all(isinstance(one, list) and len(one) == 2 for one in listed)
    _require(
        where,
        kind,
        right and all(isinstance(name, str) and len(name) <= _MOST_NAME for name, _ in listed or []),
    )
    assert isinstance(listed, list)
    return listed


def _state_sizes(value: Any, where: str) -> tuple[int, ...]:
    right = isinstance(value, list) and len(value) <= _MOST_STATES
    _require(
        where, "state_sizes", right and all(type(size) is int and 0 < size <= _MOST_STATE for size in value)
    )
    return tuple(value)


def _fits(head: ActionHead, space: gym.Space[Any]) -> bool:
    wanted = ActionHead.for_space(flat_action_space(space))
    return (head.sizes, head.numbers) == (wanted.sizes, wanted.numbers)


def _require(where: str, entry: str, right: bool) -> None:
    if not right:
        raise ConfigError(
            f"{where}: {entry!r} does not fit the rest, expected what was exported; export the policy again"
        )


@functools.cache
def _versions() -> dict[str, str]:
    # Loading a policy needs no versions, and this takes as long to import as gymnasium's spaces.
    import importlib.metadata

    names = ("numpy", "onnxruntime")
    return {"menv": menv.__version__, **{name: importlib.metadata.version(name) for name in names}}


def _with(manifest: Mapping[str, Any]) -> str:
    versions: Any = manifest.get("written_with")
    pairs: Sequence[Any] = list(versions.items()) if isinstance(versions, dict) else []
    told = (f"{name} {version}" for name, version in itertools.islice(pairs, 5))
    return ", ".join("".join(filter(str.isprintable, one))[:60] for one in told)
