"""One ONNX file of a policy: observation in, action out, for runtimes that know nothing of menv.

`menv.export_onnx` is its public name. Preprocessing, filters, weights and the scaling of actions are inside the file; a
recurrent state, frames, an action mask and random draws are inputs. Needs onnx, but not torch.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from menv.errors import ConfigError, MissingExtraError

try:
    from onnx import ModelProto, helper, load_from_string
except ImportError as error:
    raise MissingExtraError(
        "export_onnx: the package onnx is not installed, expected it; run: pip install 'menv[train]'"
    ) from error

import menv
from menv.acting.acting_graphs import GraphKind
from menv.acting.runner import open_session
from menv.algorithms.export.onnx_ends import Ends, dotted
from menv.algorithms.export.onnx_steps import Steps
from menv.connectors.default_pipelines import action_plan
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.policy_connectors import PolicyConnectors
from menv.loop.golden import Golden, difference, make_golden, rehearsal
from menv.loop.net_policy import NetPolicy
from menv.nested import leaves, paths
from menv.paths import path_given, writing
from menv.policy import Policy, check_one_policy
from menv.spaces_json import space_to_json


def export_onnx(policy: Policy, path: str | Path, *, explore: bool = False) -> Path:
    """Write a policy as one self-contained ONNX file and check it against the policy.

    Every input and output has a first axis `rows` of any length. Inputs are `obs`, or of Dict and Tuple spaces one
    for each part, `obs.<key>`, as the environment gives them, action masks included; of a recurrent policy `state`
    [rows, S], zeros at the beginning of an episode; with `explore` `noise` [rows, width], which is uniform on [0, 1)
    for choices and standard normal for continuous actions, one number after the other in the order of the space where
    there are both. A policy that stacks frames is given them: `obs` is
    [rows, frames, ...], the oldest first, and at the beginning of an episode the first observation repeated; masks are
    those of the newest. Outputs are `action`, or `action.<key>`, as the environment
    takes them, and `state_after`, the next `state`.

    Args:
        policy: Of an algorithm, or from `Policy.from_checkpoint`.
        path: Of the file, which is replaced if it exists.
        explore: Whether the file draws actions; otherwise it takes the most likely ones.

    Returns:
        The path.

    Raises:
        ConfigError: The policy has no acting graph, or connectors that no graph expresses, or ONNX Runtime does not
            reproduce its actions; or the path is a folder.
        MissingExtraError: onnx is not installed; importing the name tells so.
    """
    if path_given("export_onnx", path).is_dir():
        raise ConfigError(
            f"export_onnx: {path} is a folder, expected a file's name; write {str(path)!r} + '/policy.onnx'"
        )
    check_one_policy("export_onnx", policy)
    if not isinstance(policy, NetPolicy):
        raise ConfigError(
            f"export_onnx: {type(policy).__name__} is code of your own, which has no graph, expected a policy with a "
            "stock network; export it by your own means"
        )
    networks, where = policy.networks, f"export_onnx: policy {policy.policy_id!r}"
    graphs = networks.graphs()
    if graphs is None:
        raise ConfigError(
            f"{where}: its network has no acting graphs, expected one that has; export it by your own means"
        )
    assert networks.preprocess is not None
    own = networks.connectors[policy.index]
    steps = Steps(own.agent, networks.preprocess)
    wide = own.agent.space(networks.observation_space, 0)[1]
    if not steps.known or action_plan(own.action) != networks.built or wide != networks.row_width:
        raise ConfigError(
            f"{where}: connectors that no graph expresses among {_listed(own)}, expected the usual ones, filters of "
            "means and frames; remove the others from policy.agent_connectors and action_connectors, and do their work "
            "outside"
        )
    kind: GraphKind = "act" if explore else "greedy"
    weights = networks.backend.get_weights(policy.index)
    golden = make_golden(networks, rehearsal(networks, graphs, weights), weights, steps.one_life)
    answers = f"{'action' if explore else 'greedy'}."
    ends = Ends()
    ends.observe(networks.preprocess, functools.partial(steps.add, ends), steps.frames)
    inner = load_from_string(graphs.build(kind, False, networks.preprocess.mask_width > 0))
    ends.embed(inner, weights)
    samples = [golden[f"{answers}{index}"] for index in range(len(leaves(networks.action_space)))]
    ends.act(networks.action_space, networks.output, samples)
    model = _model(ends, inner, policy, {"explore": explore, "frames": steps.frames or 1})
    wrong = _difference(model, policy, _framed(golden, networks.preprocess, steps), answers)
    if wrong:
        raise ConfigError(
            f"{where}: {wrong} in ONNX Runtime, expected what the policy answers; report this as a bug"
        )
    with writing("export_onnx", f"{path}"):
        return _write(Path(path), model)


def _listed(connectors: PolicyConnectors) -> str:
    return ", ".join(one.name for one in (*connectors.agent.connectors, *connectors.action.connectors))


def _framed(golden: Golden, preprocess: ObsPreprocessor, steps: Steps) -> Golden:
    """Return golden rows whose observations are those of one life, each behind those before it."""
    if steps.frames is None:
        return golden
    places = steps.places(len(golden["steady"]))
    masks = {leaf.keys for leaf in preprocess.mask_leaves}
    stacked = {
        name: golden[name][places]
        for name, keys in ((f"obs.{index}", keys) for index, (keys, _) in enumerate(paths(preprocess.space)))
        if keys not in masks
    }
    return {**golden, **stacked}


def _model(ends: Ends, inner: ModelProto, policy: NetPolicy, told: Mapping[str, Any]) -> bytes:
    graph = helper.make_graph(ends.nodes, "policy", ends.inputs, ends.outputs, ends.constants)
    networks = policy.networks
    model = helper.make_model(
        graph, opset_imports=list(inner.opset_import), ir_version=inner.ir_version, producer_name="menv"
    )
    about = {
        "menv": menv.__version__,
        "policy_id": policy.policy_id,
        **{name: json.dumps(value) for name, value in told.items()},
        "observation_space": json.dumps(space_to_json(networks.observation_space)),
        "action_space": json.dumps(space_to_json(networks.action_space)),
    }
    helper.set_model_props(model, about)
    return bytes(model.SerializeToString())


def _difference(model: bytes, policy: NetPolicy, golden: Golden, answers: str) -> str:
    """Return what the file answers otherwise than the policy, to all golden rows and to the first alone, or ""."""
    networks, session = policy.networks, open_session(model)
    inputs = {
        dotted("obs", keys): f"obs.{index}"
        for index, (keys, _) in enumerate(paths(networks.observation_space))
    }
    outputs = {
        dotted("action", keys): f"{answers}{index}"
        for index, (keys, _) in enumerate(paths(networks.action_space))
    }
    names = [given.name for given in session.get_outputs()]
    for rows in (len(golden["steady"]), 1):
        part = {name: value[:rows] for name, value in golden.items()}
        feed = {given.name: part[inputs.get(given.name, given.name)] for given in session.get_inputs()}
        found: dict[str, Any] = dict(zip(names, session.run(names, feed), strict=True))
        wrong = difference(
            part, {outputs.get(name, name): np.asarray(value) for name, value in found.items()}
        )
        if wrong:
            return wrong
    return ""


def _write(path: Path, model: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{path.name[:100]}.{secrets.token_hex(6)}.tmp"
    try:
        draft.write_bytes(model)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path
