"""Worlds of Jumanji, Pgx and JaxMARL, compared with what the bare libraries return for the same keys and actions."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from menv import VectorMultiAgentEnv, check_env, to_base_env
from menv.algorithms import PPO
from menv.cli.main import main
from menv.errors import ConfigError, MissingExtraError, UnknownNameError
from menv.registry import env_names, make_env, resolve_env
from menv.wrappers import JaxMarlEnv, JumanjiEnv, PgxEnv
from menv.wrappers.jax_worlds import library
from tests.later import Later

jax, jnp, jumanji, pgx = Later("jax"), Later("jax.numpy"), Later("jumanji"), Later("pgx")
WORLDS = 3


@pytest.fixture(scope="module", autouse=True)
def _compiles_soon() -> Iterator[None]:
    """Compile with few optimizations, because most of the time here is spent on that."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Moment(NamedTuple):
    """What the bare library says about one world after a step, one entry for each agent."""

    obs: Any
    mask: Any
    acting: Any
    rewards: Any
    terminated: Any
    truncated: Any


class Jumanji:
    def __init__(self, name: str) -> None:
        self.env = jumanji.make(name)

    def reset(self, key: Any) -> Any:
        state, step = self.env.reset(key)
        return state, self.moment(step)

    def step(self, key: Any, state: Any, actions: Any) -> Any:
        state, step = self.env.step(state, actions)
        return state, self.moment(step)

    def moment(self, step: Any) -> Moment:
        obs, count = step.observation, self.env.num_agents
        time = jnp.full((count, 1), obs.step_count / self.env.time_limit)
        seen = jnp.concatenate([obs.agents_view, time], axis=1)
        each = jnp.ones(count)
        stops = step.last() & (step.discount == 0), step.last() & (step.discount != 0)
        return Moment(
            seen, obs.action_mask, each == 1, step.reward * each, *(one & (each == 1) for one in stops)
        )


class Pgx:
    def __init__(self, name: str) -> None:
        self.env = pgx.make(name)

    def reset(self, key: Any) -> Any:
        state = self.env.init(key)
        return state, self.moment(state)

    def step(self, key: Any, state: Any, actions: Any) -> Any:
        state = self.env.step(state, actions[state.current_player], key)
        return state, self.moment(state)

    def moment(self, state: Any) -> Moment:
        both, mover = jnp.ones(2, bool), jnp.arange(2) == state.current_player
        obs, mask = (jnp.stack([one, one]) for one in (state.observation, state.legal_action_mask))
        return Moment(obs, mask, mover, state.rewards, both & state.terminated, both & state.truncated)


class JaxMarl:
    def __init__(self, name: str) -> None:
        self.env = library("jaxmarl", "the tests").make(name)

    def reset(self, key: Any) -> Any:
        obs, state = self.env.reset(key)
        nothing = dict.fromkeys(self.env.agents, jnp.zeros(()))
        return state, self.moment(obs, nothing, {**nothing, "__all__": jnp.zeros(())})

    def step(self, key: Any, state: Any, actions: Any) -> Any:
        by_agent = {agent: actions[number] for number, agent in enumerate(self.env.agents)}
        obs, state, rewards, done, _ = self.env.step_env(key, state, by_agent)
        return state, self.moment(obs, rewards, done)

    def moment(self, obs: Any, rewards: Any, done: Any) -> Moment:
        seen, paid = (jnp.stack([of[agent] for agent in self.env.agents]) for of in (obs, rewards))
        each = jnp.ones(len(self.env.agents), bool)
        return Moment(seen, None, each, paid, ~each, each & (done["__all__"] != 0))


BARE: dict[str, Callable[[str], Any]] = {"jumanji": Jumanji, "pgx": Pgx, "jaxmarl": JaxMarl}


class BareWorlds:
    """The worlds of a bare library, reset one by one where they end."""

    def __init__(self, name: str, seed: int) -> None:
        scheme, _, inner = name.partition(":")
        game = BARE[scheme](inner)
        self.begin, self.advance = jax.jit(jax.vmap(game.reset)), jax.jit(jax.vmap(game.step))
        self.draw = jax.jit(jax.vmap(lambda key, t: jax.random.split(jax.random.fold_in(key, t)), (0, None)))
        self.keys, self.count = jax.random.split(jax.random.PRNGKey(seed), WORLDS), 0
        self.states, self.now = self.begin(self.drawn()[:, 1])

    def drawn(self) -> Any:
        return self.draw(self.keys, self.count)

    def step(self, actions: Any) -> tuple[Moment, Any]:
        self.count += 1
        keys = self.drawn()
        self.states, last = self.advance(keys[:, 0], self.states, actions)
        over = np.asarray((last.terminated | last.truncated).all(axis=1))
        self.now = last
        if over.any():
            fresh = self.begin(keys[:, 1])
            choose = lambda new, old: jnp.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old)  # noqa: E731
            self.states, self.now = jax.tree.map(choose, fresh, (self.states, last))
        return last, over


def stacked(column: Any) -> Any:
    """Return a column of all agents as an array [E, A, ...]."""
    if not isinstance(column, dict):
        return np.asarray(column)
    return np.stack([np.asarray(part) for part in column.values()], axis=1)


def seen(column: Any) -> tuple[Any, Any]:
    """Return observations and masks [E, A, ...]."""
    if not isinstance(column, dict):
        return np.asarray(column), None
    parts = [part if isinstance(part, dict) else {"observation": part} for part in column.values()]
    both = [np.stack([np.asarray(part[key]) for part in parts], axis=1) for key in sorted(parts[0])]
    return both[-1], both[0] if len(both) > 1 else None


def assert_same(column: Any, expected: Moment, rows: Any) -> None:
    obs, mask = seen(column)
    np.testing.assert_allclose(obs[rows], np.asarray(expected.obs, np.float32)[rows], rtol=1e-5, atol=1e-5)
    if mask is not None:
        assert np.array_equal(mask[rows], np.asarray(expected.mask)[rows])


COMPARED = (
    "jumanji:LevelBasedForaging-v0", "jumanji:RobotWarehouse-v0", "pgx:connect_four", "pgx:leduc_holdem",
    "pgx:tic_tac_toe", "jaxmarl:MPE_simple_spread_v3",
)  # fmt: skip


@pytest.mark.slow_unless("*tic_tac_toe")
@pytest.mark.parametrize("name", COMPARED)
def test_steps_are_those_of_the_bare_library(name: str) -> None:
    env: VectorMultiAgentEnv = make_env(name, {"num_envs": WORLDS})
    env.reset(seed=8)
    obs, infos = env.reset(seed=7)
    bare, rng, ends = BareWorlds(name, 7), np.random.default_rng(0), 0
    sizes = [env.action_spaces[agent].n for agent in env.possible_agents]  # type: ignore[attr-defined]
    for _ in range(1000):
        acting = np.asarray(bare.now.acting)
        assert_same(obs, bare.now, acting)
        if "acting" in infos:
            assert np.array_equal(stacked(infos["acting"]), acting)
        legal = seen(obs)[1]
        legal = np.ones((WORLDS, len(sizes), max(sizes))) if legal is None else legal
        actions = (rng.random(legal.shape) * legal).argmax(axis=2)
        last, over = bare.step(actions)
        by_agent = isinstance(obs, dict)
        obs, rewards, terminated, truncated, infos = env.step(
            dict(zip(env.possible_agents, actions.T, strict=True)) if by_agent else actions
        )
        np.testing.assert_allclose(stacked(rewards), last.rewards, rtol=1e-5, atol=1e-5)
        assert np.array_equal(stacked(terminated), last.terminated)
        assert np.array_equal(stacked(truncated), last.truncated)
        assert np.array_equal(infos["_final_obs"], over)
        assert_same(infos["final_obs"], last, over[:, None] & np.asarray(last.acting))
        ends += int(over.sum())
    assert ends > 3


@pytest.mark.slow_unless("*tic_tac_toe*")
@pytest.mark.parametrize(
    "name",
    ["jumanji:LevelBasedForaging-v0", "pgx:tic_tac_toe", "pgx:connect_four", "jaxmarl:MPE_simple_spread_v3"],
)
def test_names_are_checked_and_trained_without_a_finding(name: str) -> None:
    assert check_env(make_env(name, {"num_envs": WORLDS})) == []
    config = {
        "env_config": {"num_envs": WORLDS},
        "rollout_fragment_length": 40,
        "train_batch_size": 120,
        "sgd_minibatch_size": 40,
        "num_sgd_iter": 1,
        "seed": 3,
    }
    with PPO(env=name, config=config) as algo:
        result = algo.train()
        assert result["num_env_steps_trained"] > 0
        assert result["episodes_total"] > 0 or "Foraging" in name


@pytest.mark.slow
def test_a_worker_plays_the_same_worlds() -> None:
    config = {
        "rollout_fragment_length": 40,
        "train_batch_size": 120,
        "seed": 1,
        "env_config": {"num_envs": WORLDS},
    }
    with (
        PPO(env="pgx:tic_tac_toe", config=config) as here,
        PPO(env="pgx:tic_tac_toe", config={**config, "num_workers": 1}) as there,
    ):
        assert here.train()["digest"] == there.train()["digest"]


def test_a_seed_decides_what_happens_and_resets_without_one_differ() -> None:
    env = PgxEnv("tic_tac_toe", num_envs=WORLDS)

    def first(seed: int | None) -> str:
        # Pgx draws who begins.
        return str(stacked(env.reset(seed=seed)[1]["acting"]))

    assert first(1) == first(1)
    assert len({first(seed) for seed in range(8)}) > 1
    assert len({first(None) for _ in range(8)}) > 1


def test_compiling_is_logged_and_happens_once(caplog: pytest.LogCaptureFixture) -> None:
    compiled: list[str] = []
    with caplog.at_level(logging.INFO, "menv"):
        for _ in range(2):
            env = JaxMarlEnv("MPE_simple_v3", num_envs=2)
            env.reset(seed=1)
            jax.monitoring.register_event_duration_secs_listener(
                lambda event, *_, **__: compiled.append(event)
            )
            for _ in range(60):
                env.step(np.zeros((2, 1), np.int64))
            env.reset(seed=2)
    assert [record.getMessage() for record in caplog.records if "compiling" in record.getMessage()] == [
        "compiling JaxMarlEnv for 2 worlds ..."
    ]
    assert not [event for event in compiled if "backend_compile" in event]


def dying() -> Any:
    """Return an environment whose agent `b` dies after two steps; it ends after four; action 0 is never available."""
    jaxmarl = library("jaxmarl", "the tests")

    class Dying(jaxmarl.environments.MultiAgentEnv):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(2)
            self.agents = ["a", "b"]
            self.action_spaces = dict.fromkeys("ab", jaxmarl.environments.spaces.Discrete(2))

        def reset(self, key: Any) -> Any:
            return self.get_obs(0), {"t": 0}

        def get_obs(self, t: Any) -> Any:
            return {"a": jnp.full(2, t), "b": jnp.full(2, -t)}

        def get_avail_actions(self, state: Any) -> Any:
            return dict.fromkeys("ab", jnp.array([False, True]))

        def step_env(self, key: Any, state: Any, actions: Any) -> Any:
            t = state["t"] + 1
            done = {"a": jnp.bool_(False), "b": t >= 2, "__all__": t == 4}
            return self.get_obs(t), {"t": t}, {"a": actions["a"], "b": 10 * t}, done, {}

    return Dying()


def test_agents_of_jaxmarl_die_one_by_one_and_their_masks_are_kept() -> None:
    assert check_env(JaxMarlEnv(dying(), num_envs=2)) == []
    env = to_base_env(JaxMarlEnv(dying(), num_envs=2))
    ready = env.poll()
    assert ready.obs[0]["action_mask"].tolist() == [0, 1]
    ends = []
    for _ in range(4):
        env.send_actions(ready.slots, np.ones(len(ready.slots), np.int64))
        ready = env.poll()
        ends += [
            (
                int(ready.env_steps[0]),
                end.agent_id,
                end.reward,
                end.terminated,
                end.obs["observation"].tolist(),
            )
            for end in ready.ended
        ]
    assert ends == [(2, "b", 20.0, True, [-2, -2])] * 2 + [(4, "a", 1.0, True, [4, 4])] * 2
    assert len(ready.joined) == 4


def test_an_environment_of_one_agent_and_a_wrong_number_of_worlds_are_refused() -> None:
    with pytest.raises(ConfigError, match="agent"):
        JumanjiEnv("Game2048-v1")
    with pytest.raises(ConfigError, match="num_envs"):
        PgxEnv("tic_tac_toe", num_envs=0)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("jumanji:LevelBasedForaging", "jumanji:LevelBasedForaging-v0"),
        ("pgx:conect_four", "pgx:connect_four"),
        ("jaxmarl:MPE_simple_spread_v2", "jaxmarl:MPE_simple_spread_v3"),
        ("vmas:balanse", "vmas:balance"),
    ],
)
def test_an_unknown_name_is_refused_with_a_near_one(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"'{name}' .*'{near}'"):
        resolve_env(name)


def test_listed_names_are_those_of_the_libraries() -> None:
    names = env_names()
    assert names["pgx"] == sorted(f"pgx:{name}" for name in pgx.available_envs())
    assert set(names["jumanji"]) <= {f"jumanji:{name}" for name in jumanji.registered_environments()}
    assert set(names["jaxmarl"]) <= {
        f"jaxmarl:{name}" for name in library("jaxmarl", "the tests").registered_envs
    }
    assert "vmas:balance" in names["vmas"]


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("jumanji", lambda: JumanjiEnv("LevelBasedForaging-v0")),
        ("pgx", lambda: PgxEnv("connect_four")),
        ("jaxmarl", lambda: JaxMarlEnv("MPE_simple_spread_v3")),
    ],
)
def test_without_the_library_one_line_names_the_extra(
    package: str, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"menv-rl\[jax\]") as caught:
        make()
    assert "\n" not in str(caught.value)


def test_the_command_says_that_it_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", "env_config.num_envs=4", "--config", "rollout_fragment_length=8"]
    assert (
        main(["train", "jaxmarl:MPE_simple_v3", "--no-save", "--stop", "training_iteration=1", *config]) == 0
    )
    shown = capsys.readouterr()
    assert "compiling JaxMarlEnv for 4 worlds ..." in shown.err
    assert "submodule" not in shown.out + shown.err


def test_jax_is_imported_when_an_environment_is_made() -> None:
    script = (
        "import sys, menv, menv.wrappers; from menv.registry import env_names, resolve_env;"
        "menv.wrappers.JumanjiEnv; env_names(); resolve_env('pgx:tic_tac_toe'); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
