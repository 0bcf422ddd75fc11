"""Environment in, environment out: what stands between a user's environment and its adapter.

Imported as `menv.wrappers` only; each name is imported when it is asked for. Nothing here knows adapters,
policies or the loop.
"""

from menv._lazy_names import refuse_root_import

refuse_root_import(__name__)

from typing import TYPE_CHECKING

from menv._lazy_names import names_on_demand

if TYPE_CHECKING:
    from menv.wrappers.group_agents import GroupAgentsWrapper
    from menv.wrappers.legacy_gym import LegacyGym
    from menv.wrappers.multi_agent_gym import MultiAgentGym
    from menv.wrappers.open_spiel_env import OpenSpielEnv
    from menv.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
    from menv.wrappers.record_episodes import RecordEpisodes
    from menv.wrappers.vmas_env import VmasEnv

__all__ = [
    "GroupAgentsWrapper",
    "LegacyGym",
    "MultiAgentGym",
    "OpenSpielEnv",
    "ParallelPettingZooEnv",
    "PettingZooEnv",
    "RecordEpisodes",
    "VmasEnv",
]

_HOMES = {
    "GroupAgentsWrapper": "group_agents",
    "LegacyGym": "legacy_gym",
    "MultiAgentGym": "multi_agent_gym",
    "OpenSpielEnv": "open_spiel_env",
    "ParallelPettingZooEnv": "pettingzoo_env",
    "PettingZooEnv": "pettingzoo_env",
    "RecordEpisodes": "record_episodes",
    "VmasEnv": "vmas_env",
}

__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
