"""`OpenSpielEnv`: a game of OpenSpiel as a `MultiAgentEnv`, played with `pyspiel`'s own states."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.base_env import ALL, AgentId
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.wrappers.pettingzoo_base import MASK, OBSERVATION, check_answers

Tensor = Literal["observation", "information_state"]
_SEED = "rng_seed"


class OpenSpielEnv(MultiAgentEnv):
    """A game of OpenSpiel, with action masks.

        register_env("leduc", lambda context: OpenSpielEnv("leduc_poker(players=3)"))

    - Agents: `"player_0"`, `"player_1"`, .... The player whose turn it is acts alone. In a simultaneous move all
      players act who have a legal action.
    - Chance moves are not steps. They are sampled with the generator that `reset(seed=...)` seeds, until a player acts.
      A game with its own generator ("sampled stochastic", such as `negotiation`) gets its `rng_seed` from it.
    - Observation: Dict of `"observation"`, OpenSpiel's tensor of the player in float32 and in OpenSpiel's shape, and
      `"action_mask"`, int8 [num_distinct_actions], 1 where an action is legal.
    - Rewards: at each step, the growth of each player's return since the previous step, chance moves included. An
      episode's rewards add up to `pyspiel.State.returns()`.
    - End: all players are terminated together, and each gets a last observation whose mask allows nothing.

    Args:
        game: The game with its parameters, as `pyspiel.load_game` takes it, or a `pyspiel.Game`.
        tensor: The players' observation. `"observation"` is what a player sees now; `"information_state"` is all that
            it has seen and done, which a policy that is not recurrent needs in a game of imperfect information. None
            chooses the information state for games of imperfect information and the observation for others, or the
            only tensor of the game.

    Raises:
        ConfigError: OpenSpiel is not installed or cannot load the game, it is a mean field game, or it has no such
            tensor.

    Attributes:
        game: The `pyspiel.Game`.
        state: The `pyspiel.State` of the running episode; None before the first reset.
    """

    def __init__(self, game: Any, tensor: Tensor | None = None) -> None:
        super().__init__()
        self.game = _load(game)
        kind = self.game.get_type()
        if kind.dynamics == kind.Dynamics.MEAN_FIELD:
            raise ConfigError(
                f"OpenSpielEnv: {kind.short_name} is a mean field game, expected one whose players act; choose another "
                "game"
            )
        self._tensor, self._shape = _tensor(self.game, kind, tensor)
        self._num_actions = int(self.game.num_distinct_actions())
        self.possible_agents = [self._agent(player) for player in range(self.game.num_players())]
        observed = gym.spaces.Box(-np.inf, np.inf, self._shape, np.float32)
        mask = gym.spaces.Box(0, 1, (self._num_actions,), np.int8)
        self.observation_spaces = {
            agent: gym.spaces.Dict({OBSERVATION: observed, MASK: mask}) for agent in self.possible_agents
        }
        self.action_spaces = {agent: gym.spaces.Discrete(self._num_actions) for agent in self.possible_agents}
        self.render_mode = "ansi"
        vars(self)["metadata"] = {"name": kind.short_name, "render_modes": ["ansi"]}
        self.state: Any = None
        # Games with terminal rewards need no call before the end.
        self._rewards_at_end = kind.reward_model == kind.RewardModel.TERMINAL
        self._samples_itself = _SEED in kind.parameter_specification
        self._returns = self._no_returns = np.zeros(len(self.possible_agents))
        # The players that act next, and the legal actions of each.
        self._legal: dict[int, list[int]] = {}
        self._names = [[*map(str, range(self._num_actions))] for _ in self.possible_agents]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new game and play its chance moves, until a player acts."""
        super().reset(seed=seed)
        if self._samples_itself and seed is not None:
            self.game = _seeded(self.game, int(self.np_random.integers(2**31)))
        self.state = self.game.new_initial_state()
        self._returns = self._no_returns
        self.agents = list(self.possible_agents)
        self._advance()
        return self._observed(self._legal), {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Play the moves of the players that act, and the chance moves after them.

        Raises:
            CallOrderError: No game is running.
            ContractError: The actions are not exactly the ones of these players, or an action is not legal.
        """
        if not self.agents:
            raise CallOrderError(
                'OpenSpielEnv.step: no game is running, expected reset first and again after "__all__"; call reset'
            )
        check_answers("OpenSpielEnv.step", map(self._agent, self._legal), action_dict)
        moves = {player: self._move(player, action_dict) for player in self._legal}
        if self.state.is_simultaneous_node():
            # OpenSpiel expects a move of every player and ignores the moves of players without legal actions.
            self.state.apply_actions([moves.get(player, 0) for player in range(len(self.possible_agents))])
        elif moves:
            self.state.apply_action(*moves.values())
        self._advance()
        over = self.state.is_terminal()
        rewards = self._rewards(over)
        obs = self._observed(range(len(self.possible_agents)) if over else self._legal)
        if over:
            self.agents = []
        return obs, rewards, {ALL: over}, {ALL: False}, {}

    def render(self) -> Any:
        return str(self.state)

    def render_for(self, agent_id: AgentId) -> str:
        """Return the text that a player may see, without what the game hides from it."""
        if self.game.get_type().information == self.game.get_type().Information.PERFECT_INFORMATION:
            return str(self.state)
        return str(getattr(self.state, f"{self._tensor}_string")(self.possible_agents.index(agent_id)))

    def get_action_meanings(self) -> dict[AgentId, list[str]]:
        """Return the names of the actions of each player, as they were when the action was last legal."""
        for player, actions in self._legal.items():
            for action in actions:
                self._names[player][action] = self.state.action_to_string(player, action)
        return {self._agent(player): names for player, names in enumerate(self._names)}

    def _advance(self) -> None:
        state = self.state
        while state.is_chance_node():
            moves, chances = zip(*state.chance_outcomes(), strict=True)
            bounds = np.cumsum(chances)
            sampled = np.searchsorted(bounds, self.np_random.random() * bounds[-1], side="right")
            state.apply_action(moves[min(int(sampled), len(moves) - 1)])
        if state.is_terminal():
            self._legal = {}
        elif state.is_simultaneous_node():
            legal = {player: state.legal_actions(player) for player in range(len(self.possible_agents))}
            self._legal = {player: actions for player, actions in legal.items() if actions}
        else:
            self._legal = {state.current_player(): state.legal_actions()}

    def _move(self, player: int, action_dict: AgentDict) -> int:
        """Return the action of a player; pyspiel does not check that it is legal."""
        agent = self._agent(player)
        action = action_dict[agent]
        if action not in self._legal[player]:
            raise ContractError(
                f"OpenSpielEnv.step: {agent} chose {action!r:.100} in {self.game.get_type().short_name}, expected one "
                f"of its legal actions, {self._legal[player][:16]}; choose where its {MASK} is 1"
            )
        return int(action)

    def _rewards(self, over: bool) -> AgentDict:
        if self._rewards_at_end and not over:
            return dict.fromkeys(self.possible_agents, 0.0)
        returns = np.array(self.state.returns())
        grown, self._returns = returns - self._returns, returns
        return dict(zip(self.possible_agents, grown.tolist(), strict=True))

    def _observed(self, players: Any) -> dict[AgentId, dict[str, npt.NDArray[Any]]]:
        return {
            self._agent(player): self.seen_in(self.state, player, self._legal.get(player, []))
            for player in players
        }

    def seen_in(self, state: Any, player: int, legal: list[int]) -> dict[str, npt.NDArray[Any]]:
        """Return what a player with these legal actions observes in a state of the game."""
        mask = np.zeros(self._num_actions, np.int8)
        mask[legal] = 1
        seen = np.array(getattr(state, f"{self._tensor}_tensor")(player), np.float32).reshape(self._shape)
        return {OBSERVATION: seen, MASK: mask}

    def _agent(self, player: int) -> str:
        return f"player_{player}"


def _load(game: Any) -> Any:
    try:
        import pyspiel
    except ImportError as error:
        raise ConfigError(
            "OpenSpielEnv: pyspiel cannot be imported, expected OpenSpiel; pip install open_spiel"
        ) from error
    if isinstance(game, pyspiel.Game):
        return game
    try:
        return pyspiel.load_game(game)
    except (pyspiel.SpielError, IndexError, TypeError) as error:
        said = str(error).partition(" Available games are")[0].replace("\n", ", ")
        raise ConfigError(
            f"OpenSpielEnv: OpenSpiel cannot load {game!r:.200} ({said:.300}), expected a game with its parameters, "
            "such as 'leduc_poker(players=3)', or a pyspiel.Game; pyspiel.registered_names() lists the games"
        ) from error


def _tensor(game: Any, kind: Any, asked: Tensor | None) -> tuple[Tensor, tuple[int, ...]]:
    shapes: dict[Tensor, tuple[int, ...]] = {}
    for name in get_args(Tensor):
        if getattr(kind, f"provides_{name}_tensor"):
            with suppress(RuntimeError):  # some games declare a tensor and have none
                shapes[name] = tuple(getattr(game, f"{name}_tensor_shape")())
    if asked is None and shapes:
        hidden = kind.information == kind.Information.IMPERFECT_INFORMATION
        asked = list(shapes)[-1 if hidden else 0]
    if asked not in shapes:
        raise ConfigError(
            f"OpenSpielEnv: {kind.short_name} has the tensors {list(shapes)}, expected "
            f"{asked or ' or '.join(get_args(Tensor))}; choose another tensor or game"
        )
    return asked, shapes[asked]


def _seeded(game: Any, seed: int) -> Any:
    import pyspiel

    return pyspiel.load_game(game.get_type().short_name, {**game.get_parameters(), _SEED: seed})
