"""What a league is worth and what it costs: curves of connect four and of two poker games, and the cost of sampling.

    python -m benchmarks.self_play connect_four --seconds 900
    python -m benchmarks.self_play leduc_poker --seconds 900
    python -m benchmarks.self_play cost

Connect four is measured against fixed players that the league does not know: a random one, and one that looks one
move ahead. The poker games are measured by the NashConv of the mean of all snapshots, as OpenSpiel computes it. `cost`
samples with a league of 200 snapshots and with one opponent by turns. Each line is one JSON object; seconds are CPU
seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from examples.connect_four import COLUMNS, ROWS, ConnectFour, has_four
from menv.algorithms import PPO
from menv.inference.policy_bundle import read_policy

CONNECT_FOUR: dict[str, Any] = {
    "num_envs_per_worker": 128, "train_batch_size": 8192, "sgd_minibatch_size": 1024, "num_sgd_iter": 4,
    "gamma": 0.99, "lambda": 0.9, "lr_schedule": [[0, 1e-3], [10_000_000, 1e-4]],
    "entropy_coeff_schedule": [[0, 0.02], [10_000_000, 0.002]],
    "model": {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"},
    "self_play": {"matchmaking": {"current": 0.6, "prioritized": 0.2, "random": 0.2}},
}  # fmt: skip
COST: dict[str, Any] = {
    "num_envs_per_worker": 64,
    "train_batch_size": 4096,
    "model": {"fcnet_hiddens": [128, 128]},
}
POKER: dict[str, Any] = {
    "num_envs_per_worker": 64, "train_batch_size": 512, "sgd_minibatch_size": 512, "num_sgd_iter": 4, "gamma": 1.0,
    "lambda": 1.0, "lr_schedule": [[0, 1e-3], [300_000, 1e-4]],
    # The policies must not become deterministic: an action that is never taken is never learned again.
    "entropy_coeff_schedule": [[0, 0.2], [300_000, 0.02]],
    # With "tanh", what is learned with one card changes the play with the others: the mean does not converge.
    "model": {"fcnet_activation": "relu"},
    "self_play": {"matchmaking": {"current": 1.0}, "snapshot_interval": 1, "opponents": {}, "members_in_memory": 1},
}  # fmt: skip
LEDUC: dict[str, Any] = {
    **POKER, "train_batch_size": 2048, "sgd_minibatch_size": 2048, "lr_schedule": [[0, 1e-3], [2_000_000, 1e-4]],
    "entropy_coeff_schedule": [[0, 0.2], [2_000_000, 0.02]],
    "model": {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"},
    "self_play": {**POKER["self_play"], "snapshot_interval": 2},
}  # fmt: skip


def lookahead(planes: Any, mask: Any, rng: np.random.Generator) -> int:
    """Return a move that wins, else one that keeps the opponent from winning, else a random one."""
    moves, (own, other) = np.flatnonzero(mask).tolist(), planes.reshape(2, ROWS, COLUMNS)
    heights = (own + other).sum(axis=0).astype(int)
    for discs in (own, other):
        for column in moves:
            after = discs.copy()
            after[ROWS - 1 - heights[column], column] = 1.0
            if has_four(after.ravel()):
                return int(column)
    return int(rng.choice(moves))


def random_move(planes: Any, mask: Any, rng: np.random.Generator) -> int:
    return int(rng.choice(np.flatnonzero(mask)))


def points(policy: Any, opponent: Any, games: int, seed: int) -> tuple[float, float]:
    """Return the shares of won and of drawn games of a policy that takes its best moves; it begins every other game."""
    rng, results = np.random.default_rng(seed), np.zeros(games)
    envs = [ConnectFour() for _ in range(games)]
    seen = {number: env.reset()[0] for number, env in enumerate(envs)}
    while seen:
        ours = {n: next(iter(obs.values())) for n, obs in seen.items() if _ours(n, obs)}
        chosen = policy.compute_actions(list(ours.values()), explore=False)[0] if ours else []
        moves = dict(zip(ours, chosen, strict=True))
        after = {}
        for number, obs in seen.items():
            ((mover, own),) = obs.items()
            move = moves.get(number)
            if move is None:
                move = opponent(own["observations"], own["action_mask"], rng)
            later, rewards, terminateds, *_ = envs[number].step({mover: move})
            if terminateds["__all__"]:
                results[number] = rewards["player2" if number % 2 else "player1"]
            else:
                after[number] = later
        seen = after
    return float((results > 0).mean()), float((results == 0).mean())


def _ours(number: int, obs: Any) -> bool:
    return ("player2" if number % 2 else "player1") in obs


def elo_against(scores: dict[float, float]) -> float:
    """Return the rating at which an expected score is the one of all games; `scores` by the rating of the anchor."""
    low, high = -1000.0, 4000.0
    while high - low > 0.5:
        middle = (low + high) / 2
        expected = sum(1 / (1 + 10 ** ((anchor - middle) / 400)) for anchor in scores)
        low, high = (middle, high) if expected < sum(scores.values()) else (low, middle)
    return low


def connect_four(seconds: float, seed: int) -> Iterator[dict[str, Any]]:
    # The anchors' ratings: a random player has 0, the other one what its games against it say.
    rng = np.random.default_rng(0)
    anchor = 400 * math.log10(_match(lookahead, random_move, 400, rng))
    with PPO(env=ConnectFour, config={**CONNECT_FOUR, "seed": seed}) as algo:
        began, used = time.process_time(), 0.0
        while used < seconds:
            result: Any = algo.train()
            if algo.iteration % 25:
                continue
            used += time.process_time() - began
            policy = algo.get_policy()
            beaten, drawn = points(policy, random_move, 1000, 1)
            won, even = points(policy, lookahead, 1000, 2)
            rating = elo_against({0.0: beaten + drawn / 2, anchor: won + even / 2})
            yield {
                "cpu_seconds": round(used), "env_steps": result["num_env_steps_sampled"], "random": beaten,
                "lookahead": won, "elo_of_anchors": round(rating), "members": result["league"]["members"],
                "rating_in_league": round(result["league"]["rating"]["default_policy"]),
            }  # fmt: skip
            began = time.process_time()


def _match(one: Any, other: Any, games: int, rng: np.random.Generator) -> float:
    """Return the odds of the first player."""
    won = 0.0
    for number in range(games):
        env = ConnectFour()
        obs, _ = env.reset()
        over = False
        while not over:
            ((mover, own),) = obs.items()
            plays = one if (mover == "player1") == (number % 2 == 0) else other
            obs, rewards, terminateds, *_ = env.step(
                {mover: plays(own["observations"], own["action_mask"], rng)}
            )
            over = terminateds["__all__"]
        won += (rewards["player2" if number % 2 else "player1"] + 1) / 2
    return won / max(0.5, games - won)


def poker(game: str, seconds: float, seed: int) -> Iterator[dict[str, Any]]:
    from open_spiel.python.algorithms.exploitability import nash_conv

    from menv.wrappers import OpenSpielEnv

    measure: Any = nash_conv
    spiel = OpenSpielEnv(game).game
    means = Mean(spiel)
    settings = LEDUC if game == "leduc_poker" else POKER
    with PPO(env=f"openspiel:{game}", config={**settings, "seed": seed}) as algo:
        began, used, known = time.process_time(), 0.0, 0
        while used < seconds:
            result: Any = algo.train()
            if algo.iteration % 25:
                continue
            used += time.process_time() - began
            league: Any = algo._league
            members = list(league.members.values())
            for member in members[known:]:
                means.add(read_policy(league._folder / member.bundles["default_policy"]), len(members))
            known = len(members)
            yield {
                "cpu_seconds": round(used), "env_steps": result["num_env_steps_sampled"], "members": known,
                "nash_conv_mean": round(measure(spiel, means.policy()), 4),
                "nash_conv_learner": round(measure(spiel, means.table_of(algo.get_policy())), 4),
            }  # fmt: skip
            began = time.process_time()


class Mean:
    """The mean of several policies of a game: each plays whole games as often as the others.

    In a state it does what the policies do, weighted by how often each one comes there.
    """

    def __init__(self, game: Any) -> None:
        from open_spiel.python import policy as spiel_policy

        self._empty: Any = lambda: spiel_policy.TabularPolicy(game)
        self._game = game
        first = self._empty()
        self._states = first.states
        self._sums = np.zeros_like(first.action_probability_array)

    def table_of(self, policy: Any) -> Any:
        table = self._empty()
        for state in self._states:
            player = state.current_player()
            obs = {
                "observation": np.array(state.information_state_tensor(player), np.float32),
                "action_mask": np.array(state.legal_actions_mask(), np.int8),
            }
            key = state.information_state_string(player)
            table.policy_for_key(key)[:] = policy.action_probabilities(obs)
        return table

    def add(self, policy: Any, weight: float = 1.0) -> None:
        self.add_table(self.table_of(policy), weight)

    def add_table(self, table: Any, weight: float = 1.0) -> None:
        reached: dict[int, float] = {}
        self._visit(self._game.new_initial_state(), (1.0, 1.0), table, reached)
        for index, chance in reached.items():
            self._sums[index] += weight * chance * table.action_probability_array[index]

    def _visit(self, state: Any, reach: tuple[float, float], table: Any, reached: dict[int, float]) -> None:
        if state.is_terminal():
            return
        player = state.current_player()
        if player < 0:
            for action in state.legal_actions():
                self._visit(state.child(action), reach, table, reached)
            return
        index = table.state_lookup[state.information_state_string(player)]
        reached[index] = reach[player]
        for action in state.legal_actions():
            chance = reach[player] * table.action_probability_array[index][action]
            self._visit(
                state.child(action), (chance, reach[1]) if player == 0 else (reach[0], chance), table, reached
            )

    def policy(self) -> Any:
        table = self._empty()
        total = self._sums.sum(1, keepdims=True)
        table.action_probability_array = np.where(
            total > 0, self._sums / np.maximum(total, 1e-300), table.action_probability_array
        )
        return table


def cost(rounds: int = 30) -> Iterator[dict[str, Any]]:
    """Sample with both by turns in this process; the league has 20 snapshots in memory and loads others."""
    league_settings = {"matchmaking": "uniform", "opponents": {}, "snapshot_interval": 10**6}
    one = {**league_settings, "matchmaking": "latest", "members_in_memory": 1}
    times: dict[str, list[float]] = {"league": [], "one": []}
    with (
        PPO(env=ConnectFour, config={**COST, "self_play": league_settings, "seed": 0}) as league,
        PPO(env=ConnectFour, config={**COST, "self_play": one, "seed": 0}) as single,
    ):
        internals: Any = league._league
        weights = league.get_weights(["default_policy"])["default_policy"]
        for number in range(199):
            changed = {name: value + np.float32(1e-4 * (number + 1)) for name, value in weights.items()}
            league.set_weights({"default_policy": changed})
            internals._take_snapshot("default_policy", number)
        league.set_weights({"default_policy": weights})
        for number in range(rounds):
            for name, algo in (("league", league), ("one", single)):
                began = time.process_time()
                algo.sample()
                choosing: Any = algo._league
                choosing._choose(number, algo._rollouts.seats_playing())
                times[name].append(time.process_time() - began)
    ratios = [mine / its for mine, its in zip(times["league"][3:], times["one"][3:], strict=True)]
    yield {
        "members": len(internals.members), "seconds_league": round(statistics.median(times["league"]), 4),
        "seconds_one_opponent": round(statistics.median(times["one"]), 4),
        "ratio": round(statistics.median(ratios), 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("connect_four", "kuhn_poker", "leduc_poker", "cost"))
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.what == "cost":
        lines = cost()
    elif args.what == "connect_four":
        lines = connect_four(args.seconds, args.seed)
    else:
        lines = poker(args.what, args.seconds, args.seed)
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
