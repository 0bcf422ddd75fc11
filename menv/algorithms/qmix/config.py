"""Settings of QMIX."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from menv.algorithms.config.field_checks import check_count, shown
from menv.algorithms.config.keys import by_name
from menv.algorithms.dqn.config import OffPolicyConfig
from menv.algorithms.networks.stock_spec import MOST_SIZE
from menv.algorithms.qmix.network import MIXERS, Mixer
from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.algorithms.qmix.qmix import QMIX


@by_name
@dataclass(frozen=True, kw_only=True)
class QMIXConfig(OffPolicyConfig):
    """What `OffPolicyConfig` says, and how the members of a group share what they earn; a row is the whole group's.

    `docs/settings.md` explains each key.
    """

    algorithm: ClassVar[str] = "QMIX"

    mixer: Mixer = "qmix"
    """How the members' Q-values become the group's: "qmix" by a network that is monotonic in each of them and reads
    the state of the whole; "vdn" as their sum; None not at all, so that each learns the group's reward by itself."""
    mixing_embed_dim: int = 32
    """Width of the mixing network's hidden layer."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    train_batch_size: int = 64
    """Rows of one gradient step, drawn from the replay buffer; how often, `training_intensity` says."""
    training_intensity: float = 8.0
    """Rows that are learned from for each row that is sampled; divided by `train_batch_size`, gradient steps."""
    dueling: bool = False
    """Whether a member's Q-values are the sum of a state's value and the actions' advantages."""
    td_error_loss_fn: Literal["huber", "mse"] = "mse"
    """Loss of the TD errors, as for DQN. The default "mse" is that of Rashid et al. 2018."""
    n_step: int | Literal["auto"] = 1
    """Rewards that a target holds before it relies on the target network, at most; "auto" as there."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        if not isinstance(self.mixer, Hashable) or self.mixer not in MIXERS:
            raise ConfigError(
                f"QMIX: mixer is {shown(self.mixer)}, expected one of {MIXERS}; choose one of these"
            )
        check_count(self.algorithm, "mixing_embed_dim", self.mixing_embed_dim, most=MOST_SIZE)

    def build(self, env: Any = None) -> QMIX:
        """Return the algorithm, its environments created; `env` overrides the config's own."""
        from menv.algorithms.qmix.qmix import QMIX

        return QMIX(config=self, env=env)
