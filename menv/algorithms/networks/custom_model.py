"""What a user's own `torch.nn.Module` gets and has to give: the contract of `model {"custom_model": ...}`.

    class Grid(torch.nn.Module):
        def __init__(self, obs_space, num_outputs, width=32):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(obs_space.shape[0], width), torch.nn.Tanh())
            self.policy = torch.nn.Linear(width, num_outputs)
            self.value = torch.nn.Linear(width, 1)

        def forward(self, obs):
            features = self.body(obs)
            return self.policy(features), self.value(features)[:, 0]

    PPO(env=..., config={"model": {"custom_model": Grid, "custom_model_config": {"width": 64}}})

- The class, or a function that returns a module, is called with the observation space, the number of outputs and
  the items of `custom_model_config`. It is called more than once for each policy: for its first weights, for acting and
  for learning. First weights are those it builds, drawn from torch's generator, which is seeded for it and then
  put back.
- Observations come in the form of the space, as float32: a Box as [B, *shape] (bytes of images as 0.0 to 255.0),
  Discrete as one-hot [B, n], MultiDiscrete as one one-hot after the other [B, sum of sizes], MultiBinary as
  [B, *shape], Dict and Tuple as a dict or a tuple of these. `"action_mask"` is no part of the space that it is built
  with, nor of the observations: menv masks the outputs itself.
- What it returns for PPO is `(outputs, values)`, shapes [B, num_outputs] and [B]. Outputs are logits; of
  continuous actions the k means, then k logarithms of standard deviations. Of Dict and Tuple actions the logits of all
  discrete parts come first, part after part in the order of the space, then the means of all Box parts, then the
  logarithms of their standard deviations: `{"brake": Discrete(3), "steer": Box(-1, 1, (1,))}` has 5 outputs. For DQN
  it returns the Q-values [B, num_outputs], alone or first in a tuple; the setting `dueling` is left to the module.
- Learned is every parameter that requires a gradient. What does not, and buffers, keep the values that
  the module has when it is built with a seed of 0. The module always runs in its evaluation mode: dropout is off, and
  batch normalisation, whose statistics would never move, is refused; take `LayerNorm` or `GroupNorm`.
- A row's answer must depend on nothing but the row, the state and the parameters.
- A module with a state has a method `get_initial_state()` that returns a list of tensors [S_i], the parts of the
  state with which each life of an agent begins. Then `forward(obs, state)` gets B sequences of T rows, observations
  as [B, T, ...] and the state before them as a list of [B, S_i], and returns the state after them as well:
  `(outputs [B, T, num_outputs], values [B, T], state)`, for DQN `(q_values, state)`. Acting is T = 1; learning takes
  sequences of at most `max_seq_len` rows, shorter ones padded behind their end.
- torch runs it, in acting too; `result["inference"]` says "torch" then. On disk it is a graph that torch's exporter has
  written, once for a run, which takes a few seconds. A forward that branches on numbers has none: policies of such a
  module are refused when they are exported, and left out of checkpoints, which hold the run all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym

if TYPE_CHECKING:
    from torch import nn


class CustomModel(Protocol):
    """Builds a user's module; a subclass of `torch.nn.Module` is one."""

    def __call__(
        self, obs_space: gym.Space[Any], num_outputs: int, /, **custom_model_config: Any
    ) -> nn.Module:
        """Return a new module.

        Args:
            obs_space: Of the policy, without action masks.
            num_outputs: Width of its first output.
            custom_model_config: The items of that setting.
        """
