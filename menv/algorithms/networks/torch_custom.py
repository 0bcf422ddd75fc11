"""A user's own module as a `TorchNetwork`: building it, trying it out, running it over somebody else's parameters.

`CustomSpec` calls it. It knows the contract of `custom_model`, and nothing of what the module computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from menv.acting.action_head import ILLEGAL
from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.algorithms.networks.custom_spec import CustomSpec

_TRIAL_ROWS = 2


class TorchCustom:
    """The module of `spec` over `params`, whose current values every call reads.

    Args:
        spec: Builds the module.
        params: A tensor for each learned parameter; others are left alone.

    Attributes:
        obs_size: F, numbers in a flat observation.
    """

    def __init__(self, spec: CustomSpec, params: Mapping[str, Tensor]) -> None:
        self.obs_size = spec.obs_size
        self._structure = spec.structure
        self._of_q_values = spec.head.kind == "q_values"
        # Whatever is not learned has to be the same for everybody who runs this network.
        self._module = build_module(spec, 0)
        self._params = {name: params[name] for name in learned(self._module)}

    def dist_inputs(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        """Return [N, D] distribution inputs after masking, from obs [N, F] and mask [N, M]."""
        return self.both(obs, mask)[0]

    def values(self, obs: Tensor) -> Tensor:
        """Return [N] state values; of Q-values the highest of each row."""
        return self.both(obs, None)[1]

    def both(self, obs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and values in one pass."""
        found = torch.func.functional_call(self._module, self._params, (self._structure(obs.float()),))
        outputs: Tensor = found[0] if isinstance(found, tuple) else found
        values = outputs.amax(-1) if self._of_q_values else found[1]
        return outputs if mask is None else torch.where(mask, outputs, ILLEGAL), values


def build_module(spec: CustomSpec, seed: int) -> nn.Module:
    """Return a new module that has been tried out, in its evaluation mode.

    Torch's own generator is as it was afterwards.

    Raises:
        ConfigError: It cannot be built, or gives something else than it has to.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        try:
            module = spec.model(spec.structure.space, spec.head.inputs, **spec.config)
        except Exception as error:
            raise ConfigError(
                f"{_where(spec)}: building it failed with {type(error).__name__}: {error}; expected to be called as "
                f"(obs_space, num_outputs{''.join(f', {name}=...' for name in spec.config)})"
            ) from error
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"{_where(spec)}: gave {type(module).__name__}, expected a torch.nn.Module; return a module"
            )
        module.eval()
        # Modules that find out their sizes when they are first run have their parameters from then on.
        found = _tried(spec, module)
    _check_outputs(spec, found)
    _check_parts(spec, module)
    return module


def learned(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module that are learned, by name; one that has two names comes once."""
    return {name: param for name, param in module.named_parameters() if param.requires_grad}


def _tried(spec: CustomSpec, module: nn.Module) -> Any:
    """Return what the module gives for rows of zeros."""
    obs = spec.structure(torch.zeros(_TRIAL_ROWS, spec.obs_size))
    try:
        with torch.no_grad():
            return module(obs)
    except Exception as error:
        raise ConfigError(
            f"{_where(spec)}: forward failed with {type(error).__name__}: {error}; expected to take {_shapes(obs)} for "
            f"{spec.structure.space}"
        ) from error


def _check_outputs(spec: CustomSpec, found: Any) -> None:
    outputs, values = (_TRIAL_ROWS, spec.head.inputs), (_TRIAL_ROWS,)
    if spec.head.kind == "q_values":
        fits = _is_float(found[0] if isinstance(found, tuple) and found else found, outputs)
        rule = f"Q-values {list(outputs)}"
    else:
        fits = isinstance(found, tuple) and len(found) == 2
        fits = fits and _is_float(found[0], outputs) and _is_float(found[1], values)
        rule = f"(outputs {list(outputs)}, values {list(values)})"
    if not fits:
        raise ConfigError(
            f"{_where(spec)}: forward gave {_shapes(found)} for {_TRIAL_ROWS} rows, expected {rule} of float32; "
            "return that from forward"
        )


def _check_parts(spec: CustomSpec, module: nn.Module) -> None:
    """Refuse modules that would not be learned as their author means."""
    norm = next((name for name, part in module.named_modules() if isinstance(part, _BatchNorm)), None)
    if norm is not None:
        raise ConfigError(
            f"{_where(spec)}: batch normalisation in {norm!r}, expected none, because its statistics would never move; "
            "take LayerNorm or GroupNorm"
        )
    if hasattr(module, "get_initial_state"):
        raise ConfigError(
            f"{_where(spec)}: it has state (get_initial_state), expected a module without any; leave the state out"
        )
    params = learned(module)
    wrong = next(
        (
            name
            for name, param in params.items()
            if param.dtype != torch.float32 or param.device.type != "cpu"
        ),
        None,
    )
    if wrong is not None or not params:
        found = (
            f"parameter {wrong!r} is {params[wrong].dtype} on {params[wrong].device}"
            if wrong
            else "none at all"
        )
        raise ConfigError(
            f"{_where(spec)}: {found}, expected parameters of float32 on the CPU that require gradients; "
            "change the module"
        )


def _is_float(value: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == shape and value.dtype == torch.float32


def _shapes(value: Any) -> str:
    """Describe tensors by their shapes, and anything else by its type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_shapes(part)}' for name, part in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} ({', '.join(map(_shapes, value))})"
    return type(value).__name__


def _where(spec: CustomSpec) -> str:
    return f"model: custom_model {getattr(spec.model, '__name__', type(spec.model).__name__)}"
