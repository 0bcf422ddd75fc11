"""One policy's answers to single agents, through its connectors: who is asked is known, and remembered.

`NetPolicy.answer_agents` calls it, for whoever acts without a sampler. Statistics stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from menv.acting.backend import Decision
from menv.connectors.action_data import ActionConnectorDataType, PolicyOutput
from menv.connectors.agent_rows import MASK, AgentConnectorDataType, AgentConnectorsOutput, as_taken
from menv.connectors.default_pipelines import action_plan, leaf_connectors
from menv.connectors.pipeline import AgentConnectorPipeline
from menv.connectors.policy_connectors import PolicyConnectors
from menv.errors import ContractError
from menv.loop.networks import Networks
from menv.sample_batch import SampleBatch
from menv.segments import Column


class Shown:
    """What a network is shown of some agents.

    Args:
        agents: N of them, as a pipeline returned them.
        networks: Of the policy: they say what they take.
        mask_width: M, 0 without masks.

    Attributes:
        obs: [N, F].
        mask: [N, M] or None.
        state: [N, S] or None.
        inputs: What action connectors see of each, beside its row and mask.

    Raises:
        ContractError: A column is missing or of another size.
        OutsideSpaceError: The network takes bytes, and an observation has become something else.
    """

    def __init__(
        self,
        agents: Sequence[AgentConnectorDataType],
        networks: Networks,
        mask_width: int,
    ) -> None:
        found = [agent.data for agent in agents]
        views: list[Any] = [
            data.sample_batch if isinstance(data, AgentConnectorsOutput) else _one_row(data) for data in found
        ]
        self.inputs = [data.raw_dict if isinstance(data, AgentConnectorsOutput) else data for data in found]
        self.obs = as_taken(_stacked(views, SampleBatch.OBS, networks.row_width), networks.row_dtype)
        self.mask = _stacked(views, MASK, mask_width).astype(np.bool_) if mask_width else None
        state_sizes = networks.state_sizes
        names = [SampleBatch.STATE_IN.format(number) for number in range(len(state_sizes))]
        parts = [_stacked(views, name, size) for name, size in zip(names, state_sizes, strict=True)]
        self.state = np.concatenate(parts, 1).astype(np.float32) if parts else None


@contextmanager
def as_it_is(pipeline: AgentConnectorPipeline) -> Iterator[None]:
    """Leave what connectors have learned as it is for a while."""
    before = [(leaf, leaf.is_training) for leaf in leaf_connectors(pipeline)]
    pipeline.in_eval()
    try:
        yield
    finally:
        pipeline.is_training = True
        for leaf, was_training in before:
            leaf.is_training = was_training


def answered(
    agents: Sequence[AgentConnectorDataType],
    shown: Shown,
    decision: Decision,
    states: Sequence[Column],
    logp: Column,
    connectors: PolicyConnectors,
    action_space: Any,
) -> list[PolicyOutput]:
    """Return `(action, states, fetches)` for each agent, after the action connectors.

    Args:
        agents: N of them.
        shown: What the network was shown.
        decision: What it answered.
        states: Parts of the recurrent state after it, [N, H] each.
        logp: [N].
        connectors: Of the policy.
        action_space: Likewise.
    """
    plan = action_plan(connectors.action)
    ready = connectors.output(action_space)(decision.actions)
    outputs = []
    for row, agent in enumerate(agents):
        rows = {SampleBatch.OBS: shown.obs[row], **({} if shown.mask is None else {MASK: shown.mask[row]})}
        whose = (agent.env_id, agent.agent_id, {**shown.inputs[row], **rows})
        own, fetches = [part[row] for part in states], {"action_logp": logp[row]}
        seen = shown.inputs[row]
        if not (seen.get(SampleBatch.TERMINATEDS) or seen.get(SampleBatch.TRUNCATEDS)):
            # What is answered to a last observation must not be remembered into the next life.
            connectors.agent.on_policy_output(
                ActionConnectorDataType(*whose, (decision.actions[row], own, fetches))
            )
        answer = ActionConnectorDataType(*whose, (ready[row], own, fetches))
        for connector in plan.rest:
            answer = connector(answer)
        outputs.append(answer.output)
    return outputs


def _one_row(data: Any) -> dict[str, Any]:
    view = {name: np.asarray(value)[None] for name, value in data.items() if name == MASK}
    number = 0
    while f"state_out_{number}" in data:
        view[SampleBatch.STATE_IN.format(number)] = np.asarray(data[f"state_out_{number}"])[None]
        number += 1
    return {**view, SampleBatch.OBS: np.asarray(data[SampleBatch.NEXT_OBS])[None]}


def _stacked(views: Sequence[Any], name: str, width: int) -> Column:
    """Return [N, width] of one column."""
    sizes = {np.size(view[name]) if name in view else 0 for view in views}
    if sizes != {width}:
        raise ContractError(
            f"column {name!r}: {sorted(sizes)} numbers after the agent connectors, expected {width}; look at "
            "print(policy.agent_connectors) for a connector that is missing or too much"
        )
    return np.concatenate([np.asarray(view[name]).reshape(1, -1) for view in views])
