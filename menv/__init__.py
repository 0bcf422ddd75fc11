"""menv: environments with many agents, of whatever kind, under one interface that trains.

Every environment becomes a `BaseEnv`; a policy mapping says who answers for whom; `menv.algorithms`
trains. Importing menv imports nothing heavy: each name is fetched when it is first used.
"""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.algorithms.networks.onnx_export import export_onnx as export_onnx
    from menv.base_env import BaseEnv as BaseEnv
    from menv.base_env import End as End
    from menv.base_env import EpisodeEnd as EpisodeEnd
    from menv.base_env import Join as Join
    from menv.base_env import Ready as Ready
    from menv.base_env import Unclaimed as Unclaimed
    from menv.callbacks import DefaultCallbacks as DefaultCallbacks
    from menv.callbacks import make_multi_callbacks as make_multi_callbacks
    from menv.checking.check import check_env as check_env
    from menv.env_context import EnvContext as EnvContext
    from menv.envs.independent_copies import make_multi_agent as make_multi_agent
    from menv.episode import Episode as Episode
    from menv.errors import CallOrderError as CallOrderError
    from menv.errors import ConfigError as ConfigError
    from menv.errors import ContractError as ContractError
    from menv.errors import EnvCrashError as EnvCrashError
    from menv.errors import EnvFaultWarning as EnvFaultWarning
    from menv.errors import EpisodeError as EpisodeError
    from menv.errors import MenvError as MenvError
    from menv.errors import MissingExtraError as MissingExtraError
    from menv.errors import NoRoomError as NoRoomError
    from menv.errors import NotWrittenError as NotWrittenError
    from menv.errors import RefusedError as RefusedError
    from menv.errors import ServerGoneError as ServerGoneError
    from menv.errors import UnknownNameError as UnknownNameError
    from menv.errors import WorkerLostError as WorkerLostError
    from menv.external_env import ExternalEnv as ExternalEnv
    from menv.external_env import ExternalMultiAgentEnv as ExternalMultiAgentEnv
    from menv.multi_agent_env import MultiAgentEnv as MultiAgentEnv
    from menv.policy import Policy as Policy
    from menv.policy import RandomPolicy as RandomPolicy
    from menv.policy_spec import PolicySpec as PolicySpec
    from menv.registry import register_env as register_env
    from menv.sample_batch import MultiAgentBatch as MultiAgentBatch
    from menv.sample_batch import SampleBatch as SampleBatch
    from menv.sampling.local_inference import local_policy_inference as local_policy_inference
    from menv.vector_env import VectorEnv as VectorEnv
    from menv.vector_env import VectorMultiAgentEnv as VectorMultiAgentEnv
    from menv.verify.verify import verify_backends as verify_backends
    from menv.workers.convert import to_base_env as to_base_env

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy_names(
    __name__, ("algorithms", "connectors", "envs", "serving", "wrappers")
)
