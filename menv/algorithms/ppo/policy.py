"""PPOPolicy: subclass it to change the loss, add modules such as a critic, or postprocess trajectories.

Name the subclass in `PolicySpec(policy_class=...)`. It acts through the same network as any PPO policy; its additions
exist only in the process that learns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from menv import rng
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.torch_runtime import array_of
from menv.algorithms.ppo.learner import PPOLearner
from menv.algorithms.ppo.loss import LossWeights, Minibatch, ppo_loss
from menv.algorithms.ppo.ppo import PPOConfig
from menv.errors import ConfigError, ContractError
from menv.inference.backend import check_weights
from menv.inference.network_policy import NetworkGroup, NetworkPolicy
from menv.policy_spec import SpecConfig

if TYPE_CHECKING:
    from menv.algorithms.networks.network_spec import TorchNetwork


class PPOPolicy(NetworkPolicy):
    """A policy of PPO; subclass it, override some of these three methods, and name the class in a `PolicySpec`.

    - `make_modules()` returns additional torch modules, such as a centralized critic.
    - `postprocess_trajectory(batch, other_agent_batches, episode)` adds columns to a trajectory chunk of T timesteps:
      numpy arrays [T, ...]. PPO adds `action_logp`, `vf_preds`, `advantages` and `value_targets` unless you do. With
      custom values, call `menv.algorithms.compute_advantages`. Rewards are not clipped yet.
    - `loss(batch)` returns the loss of a minibatch of B timesteps in random order.

    One optimizer trains the network and the modules. Modules are part of `get_weights()`, under names such as
    `critic.0.weight`, and never act.

    Attributes:
        settings: All settings of this policy, such as `settings.gamma`; `config["gamma"]` is the same.
        modules: The modules of `make_modules`, always with the current weights.
        loss_weights: PPO's coefficients in the current update.
        value_mean: Mean of the value targets; see `loss`.
        value_unit: Unit of the learned values; see `loss`.
    """

    value_mean = 0.0
    value_unit = 1.0

    algorithm: ClassVar[str | None] = "PPO"

    def __init__(
        self,
        networks: NetworkGroup,
        index: int,
        config: Mapping[str, Any] | None = None,
        seed: int = 0,
        *,
        network: NetworkSpec,
        settings: PPOConfig,
    ) -> None:
        super().__init__(networks, index, config, seed)
        self.settings = settings
        self.config = SpecConfig(config or {}, settings)
        self.loss_weights = LossWeights.of(settings, 0, settings.first_kl_coeff(network.head))
        self._spec = network
        self._network: TorchNetwork | None = None
        self._learning = False
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            # Initial weights of modules depend on the seed and the policy alone.
            torch.manual_seed(rng.key(seed, rng.stable_hash(self.policy_id), rng.WEIGHTS) >> 1)
            self.modules = self._checked(self.make_modules())
        if network.state_sizes and (self.modules or type(self).loss is not PPOPolicy.loss):
            raise ConfigError(
                f"policy {self.policy_id!r}: a custom loss or modules on a recurrent network, expected PPO's "
                "loss on sequences; leave model.use_lstm and use_gru out, or override postprocess_trajectory alone"
            )

    def __getstate__(self) -> dict[str, Any]:
        # A copy has separate weights, which no learner changes.
        return {**super().__getstate__(), "_network": None, "_learning": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.config = SpecConfig(self.config, self.settings)

    def make_modules(self) -> dict[str, nn.Module]:
        """Return torch modules by name, with float32 parameters and without buffers; called once.

        Torch's generator is seeded, so that the same seed gives the same weights.
        """
        return {}

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, Mapping[str, Any]]:
        """Return the loss of a minibatch; override it to change what is learned.

        With `normalize_values`, `value_targets` and `vf_preds` are `(values - value_mean) / value_unit` here, and
        `self.network` returns values in the same unit: the loss is then the same whether rewards are 0.01 or 10,000.
        Columns that you added, such as returns, stay in the environment's unit. Compare them with
        `value_mean + value_unit * self.network.values(obs)`.

        A policy with both modules and a `postprocess_trajectory` may have a custom critic. All its columns are in
        the environment's unit, and `loss_weights.vf_loss_coeff`, which `ppo_loss` uses, is divided by the squared
        standard deviation of the value targets.

        Args:
            batch: B timesteps of every column of the train batch, as tensors: obs [B, F], actions, rewards,
                terminateds, truncateds, `action_mask` [B, M] if there is one, `action_logp`, `vf_preds`,
                `value_targets`, and your columns. `advantages` have mean 0 and variance 1 over the train batch.
                `action_dist_inputs` [B, D] parameterize the distribution that acted, whose log-probability and
                entropy `self.networks.backend.head` computes. Floats are float32. With `num_gpus` the columns, the
                network and the modules are on the GPU while the loss is computed.

        Returns:
            A scalar, or a scalar and a dict of scalar statistics. A statistic "kl" adapts `kl_coeff`.
        """
        return self.ppo_loss(batch)

    def ppo_loss(
        self, batch: Mapping[str, Tensor], values: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss of a minibatch and its statistics.

        Args:
            batch: As for `loss`.
            values: [B] to use instead of the output of the value network.
        """
        rows = Minibatch(
            batch["obs"], batch.get("action_mask"), batch["actions"], batch["action_logp"], batch["action_dist_inputs"],
            batch["advantages"], batch["value_targets"], critic_obs=batch.get("critic_obs"),
            magnet=batch.get("magnet_dist_inputs"),
        )  # fmt: skip
        if values is None and rows.critic_obs is None:
            inputs, values = self.network.both(rows.obs, rows.mask)
        else:
            inputs = self.network.dist_inputs(rows.obs, rows.mask)
        if values is None:
            values = self.network.values(batch["critic_obs"])
        terms = ppo_loss(self._spec.head, self.loss_weights, rows, inputs, values)._asdict()
        return terms.pop("total"), {name: term for name, term in terms.items() if term is not None}

    @property
    def network(self) -> TorchNetwork:
        """The policy and value network with the current weights.

        `dist_inputs(obs [N, F], mask)` returns [N, D], `values(obs)` returns [N] for the input of the value network,
        `critic_obs` [N, C] if that is set, and `both(obs, mask)` returns both.
        """
        if self._network is None:
            weights = super().get_weights()
            self._network = self._spec.torch_network(
                {name: torch.from_numpy(weights[name]) for name in weights}
            )
        return self._network

    @property
    def learns_as_ppo(self) -> bool:
        """Whether the class changes neither the loss nor its inputs."""
        own, names = type(self), ("loss", "ppo_loss", "checked_loss", "network")
        return not self.modules and all(getattr(own, name) is getattr(PPOPolicy, name) for name in names)

    @property
    def has_own_critic(self) -> bool:
        """Whether values may come from the modules of the policy."""
        own = type(self).postprocess_trajectory is not PPOPolicy.postprocess_trajectory
        return bool(self.modules) and own

    def get_weights(self) -> dict[str, Any]:
        """Return copies of the weights by name, including the weights of the modules."""
        own = {name: array_of(param.detach()).copy() for name, param in self.module_params()}
        return {**super().get_weights(), **own}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy weights in; names and shapes must equal the names and shapes of `get_weights`."""
        own = dict(self.module_params())
        for name, param in own.items():
            found = np.shape(weights[name]) if name in weights else None
            if found != tuple(param.shape):
                raise ConfigError(
                    f"policy {self.policy_id!r}: weights {name!r} have shape {found}, expected {tuple(param.shape)}; "
                    "give the weights of a policy of the same class"
                )
        check_weights(self.policy_id, {name: weights[name] for name in own})
        super().set_weights({name: weights[name] for name in weights if name not in own})
        for name, param in own.items():
            param.data.copy_(torch.from_numpy(np.array(weights[name], np.float32)))
        if not self._learning:
            self._network = None

    def leave_learner(self) -> None:
        """Separate the weights of this policy from its learner."""
        self._network, self._learning = None, False
        for _, param in self.module_params():
            param.data, param.grad = param.data.clone(), None

    def make_learner(self, seed: int) -> PPOLearner:
        """Return the learner of this policy."""
        owned = {id(param) for _, param in self.module_params()}
        for name, value in vars(self).items():
            params = value.parameters() if isinstance(value, nn.Module) else ()
            if any(param.requires_grad and id(param) not in owned for param in params):
                raise ConfigError(
                    f"policy {self.policy_id!r}: attribute {name!r} is a torch module that is not trained, expected "
                    "trained modules in make_modules; return it there, or switch requires_grad off"
                )
        own = None if self._spec.state_sizes else self
        return PPOLearner(self._spec, self.settings, self.get_weights(), seed, own)

    def checked_loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch and its statistics; the learner calls it.

        Raises:
            ContractError: `loss` did not return a finite scalar that depends on the weights.
        """
        return _scalars(self.policy_id, self.loss(batch))

    def learn_with(self, network: TorchNetwork, params: Mapping[str, Tensor]) -> None:
        """Share the parameters of a learner from now on.

        Args:
            network: The network over these parameters.
            params: The parameters by the names of `get_weights`, including the modules.
        """
        self._network, self._learning = network, True
        self._share(params)

    @contextmanager
    def lent(self, network: TorchNetwork, params: Mapping[str, Tensor]) -> Iterator[None]:
        """Share the parameters of a learner on a GPU while it learns.

        Args:
            network: As for `learn_with`.
            params: As for `learn_with`.
        """
        own = {name: param.data for name, param in self.module_params()}
        self._network = network
        self._share(params)
        try:
            yield
        finally:
            self._network = None
            for name, param in self.module_params():
                param.grad, param.data = None, own[name]

    def _share(self, params: Mapping[str, Tensor]) -> None:
        for name, param in self.module_params():
            param.grad = None
            param.data = params[name].detach()
            param.grad = params[name].grad

    def module_params(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of the modules by the names of `get_weights`."""
        for module_name, module in self.modules.items():
            for name, param in module.named_parameters():
                yield f"{module_name}.{name}", param

    def _checked(self, modules: object) -> dict[str, nn.Module]:
        where = f"policy {self.policy_id!r}: make_modules"
        if not isinstance(modules, Mapping) or not all(
            isinstance(one, nn.Module) for one in modules.values()
        ):
            raise ConfigError(
                f"{where} returned {type(modules).__name__}, expected a dict of torch modules by name; "
                'return {"critic": ...}'
            )
        taken = {name.partition(".")[0] for name in self._spec.weight_shapes()}
        for name, module in modules.items():
            params = {key for key, one in module.named_parameters() if one.dtype == torch.float32}
            wrong = sorted(module.state_dict().keys() - params)
            if name in taken or wrong:
                raise ConfigError(
                    f"{where}: {name!r} is a name of the network's layers or has {wrong}, expected another name and "
                    "float32 parameters only; leave layers with buffers such as BatchNorm out"
                )
        return dict(modules)


def _scalars(policy_id: str, found: object) -> tuple[Tensor, dict[str, Tensor]]:
    total, stats = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    where = f"policy {policy_id!r}.loss"
    if not isinstance(total, Tensor) or total.shape != () or not isinstance(stats, Mapping):
        got = f"a tensor of shape {tuple(total.shape)}" if isinstance(total, Tensor) else type(total).__name__
        raise ContractError(
            f"{where}: returned {got}, expected a scalar tensor, or one and a dict of statistics; take the mean over "
            "the rows"
        )
    if not total.requires_grad or not math.isfinite(float(total.detach())):
        got = str(float(total.detach())) if total.requires_grad else "a number without a gradient"
        raise ContractError(
            f"{where}: returned {got}, expected a finite number that depends on the weights; compute it from "
            "self.network or self.modules without detach(), and look for a division by zero or a logarithm of 0"
        )
    statistics = {
        str(name): torch.as_tensor(value, dtype=torch.float32).detach() for name, value in stats.items()
    }
    for name, value in statistics.items():
        if value.shape != ():
            raise ContractError(
                f"{where}: statistic {name!r} has shape {tuple(value.shape)}, expected a scalar; take its mean"
            )
    return total, statistics
