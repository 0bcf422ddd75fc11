"""`menv train`: what the command line says becomes settings, bounds and checkpoints."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import menv
from menv.algorithms import DQN, PPO, PPOConfig
from menv.cli.main import main
from menv.errors import ConfigError
from menv.tracking import Run
from tests.house.sources import ROOT

SMALL = ["--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64"]
ONCE = [*SMALL, "--stop", "training_iteration=1"]


def results(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """Return what `menv train ... --json` prints."""
    saving = [] if "--run-dir" in arguments or "--resume" in arguments else ["--no-save"]
    assert main(["train", *arguments, "--json", *saving]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def stored(run: str | Path) -> dict[str, Any]:
    """Return the settings in the latest checkpoint of a run."""
    checkpoints = Path(run, "checkpoints")
    number = (checkpoints / "LATEST").read_text().strip()
    config: dict[str, Any] = json.loads((checkpoints / number / "manifest.json").read_text())["config"]
    return config


def test_a_run_ends_with_the_iteration_that_reaches_a_bound(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = results(capsys, "corridors:Corridor", *SMALL, "--stop", "num_env_steps_sampled=150")
    assert [one["num_env_steps_sampled"] for one in told] == [64, 128, 192]
    assert told[-1]["episode_reward_mean"] == 3.0


def test_bounds_may_lie_deeper_and_the_first_that_is_reached_counts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = ["--stop", "training_iteration=5", "--stop", "info/default_policy/cur_lr=0.5"]
    told = results(capsys, "corridors:Corridor", *SMALL, *bounds, "--config", "lr=0.5")
    assert len(told) == 1


def test_a_bound_on_a_key_of_a_callback_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callbacks = ["--config", "callbacks=@corridors:Note"]
    told = results(capsys, "corridors:Corridor", *SMALL, *callbacks, "--stop", "noted=20")
    assert [one["noted"] for one in told] == [10, 20]


def test_settings_of_files_and_keys_are_put_over_each_other(folder: Path) -> None:
    (folder / "a.toml").write_text("lr = 0.1\ngamma = 0.5\n[model]\nfcnet_hiddens = [4]\n")
    (folder / "b.json").write_text('{"gamma": 0.6, "env_config": {"length": 7}}')
    files = ["--config", "a.toml", "--config", "b.json", "--config", "model.fcnet_activation=tanh"]
    assert main(["train", "corridors:Corridor", *files, *ONCE, "--run-dir", "run"]) == 0
    config = stored("run")
    assert (config["lr"], config["gamma"], config["env_config"]) == (0.1, 0.6, {"length": 7})
    assert config["model"]["fcnet_hiddens"] == [4]
    assert config["model"]["fcnet_activation"] == "tanh"


def test_settings_of_the_zoo_are_used_under_those_of_the_user_and_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("menv.algorithms.config.zoo.ZOO", folder / "zoo")
    (folder / "zoo").mkdir()
    (folder / "zoo" / "halls.toml").write_text(
        'envs = ["corridors:Cor*"]\n[PPO]\nenv_steps = 64\ngamma = 0.5\nlr = 0.1\nmodel.fcnet_hiddens = [4]\n'
        '[Fast]\nbase = "PPO"\nlr = 0.2\n'
    )
    train = ["train", "corridors:Corridor"]
    assert main([*train, *SMALL, "--config", "gamma=0.9", "--run-dir", "run"]) == 0
    line = "halls.toml [PPO]: lr=0.1, model={'fcnet_hiddens': [4]}; --no-zoo"
    assert line in capsys.readouterr().out
    config = stored("run")
    assert [config[key] for key in ("gamma", "lr")] == [0.9, 0.1]
    assert list(Run("run").progress()["num_env_steps_sampled"]) == [64]
    assert main(["train", "corridors:Corridor", "--resume", "run", "--stop", "training_iteration=2"]) == 0
    assert Run("run").config["zoo"] == "halls.toml [PPO]"
    assert main([*train, *ONCE, "--zoo", "Fast", "--run-dir", "fast"]) == 0
    assert [stored("fast")[key] for key in ("gamma", "lr")] == [0.5, 0.2]
    assert main([*train, *ONCE, "--no-zoo", "--run-dir", "plain"]) == 0
    assert stored("plain").get("gamma") != 0.5
    assert main([*train, *ONCE, "--zoo", "Slow"]) == 2
    assert main([*train, *ONCE, "--zoo", "Fast", "--run", "DQN"]) == 2
    errors = capsys.readouterr().err
    assert re.search("error: .*Slow.*corridors:Corridor", errors)
    assert re.search("error: .*Fast.*PPO", errors)


def test_mappo_is_ppo_with_a_critic_that_sees_the_state(folder: Path) -> None:
    assert main(["train", "corridors:Corridor", "--run", "MAPPO", *ONCE, "--run-dir", "run"]) == 0
    assert (Run("run").config["algorithm"], stored("run")["critic_obs"]) == ("PPO", "state")


def test_a_zoo_file_of_ones_own_is_used_by_the_command_and_in_python(folder: Path) -> None:
    (folder / "my.toml").write_text(
        'envs = ["corridors:*"]\n[PPO]\ngamma = 0.5\nlr = 0.1\n[Fast]\nbase = "PPO"\nlr = 0.2\n'
    )
    train = ["train", "corridors:Corridor", *ONCE, "--zoo"]
    for number, (table, lr) in enumerate({"my.toml": 0.1, "my.toml:Fast": 0.2}.items()):
        assert main([*train, table, "--run-dir", f"own{number}"]) == 0
        assert [stored(f"own{number}")[key] for key in ("gamma", "lr")] == [0.5, lr]
        config = PPOConfig.from_zoo("corridors:Corridor", table)
        assert (config.env, config.gamma, config.lr) == ("corridors:Corridor", 0.5, lr)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("missing.toml", None),
        ("my.toml:Slow", "envs = ['*']\n[PPO]\nlr = 0.1\n"),
        ("my.toml", "envs = ['Pendulum-v1']\n[PPO]\nlr = 0.1\n"),
        ("my.toml", "[PPO]\nlr = 0.1\n"),
        ("my.toml", "envs = ["),
        ("my.toml", "envs = ['*']\n[PPO]\nbase = 'Other'\n[Other]\nbase = 'PPO'\n"),
        ("my.toml", "envs = ['*']\n[PPO]\nbase = 'Other'\n"),
        ("my.toml", "envs = ['*']\n[PPO]\nenv_steps = 'many'\n"),
        ("my.toml:DQN", "envs = ['*']\n[DQN]\nlr = 0.1\n"),
        ("my.toml", "envs = ['*']\n[PPO]\nlearning_speed = 0.1\n"),
    ],
)
def test_a_zoo_file_that_does_not_fit_is_refused(tmp_path: Path, table: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / "my.toml").write_text(text)
    with pytest.raises(ConfigError):
        PPOConfig.from_zoo("CartPole-v1", str(tmp_path / table))


def test_values_may_be_written_as_python_has_them(folder: Path) -> None:
    typed = {"explore": "False", "gamma": ".9", "model.fcnet_hiddens": "(4, 5)", "env_config.mark": "A, b"}
    typed |= {"multiagent.policies": "['first']", "kl_coeff": "None", "clip_param": "Infinity"}
    given = [part for key, value in typed.items() for part in ("--config", f"{key}={value}")]
    assert main(["train", "corridors:Corridor", *given, *ONCE, "--run-dir", "run"]) == 0
    assert sorted(folder.glob("run/checkpoints/000001/policies/*")) == [
        folder / "run/checkpoints/000001/policies/first"
    ]
    config = stored("run")
    assert [config[key] for key in ("explore", "gamma", "kl_coeff")] == [False, 0.9, None]
    assert (config["model"]["fcnet_hiddens"], config["env_config"]) == ([4, 5], {"mark": "A, b"})


def test_a_module_that_registers_environments_is_imported_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (told,) = results(capsys, "corridor", "--import", "corridors.py", *ONCE)
    assert told["episode_len_mean"] == 3.0


def test_workers_find_modules_of_the_working_directory(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (told,) = results(
        capsys, "corridors:Corridor", *ONCE, "--config", "num_workers=1", "--config", "engine=process"
    )
    assert told["episode_len_mean"] == 3.0


def test_each_agent_has_a_policy_of_its_name_and_a_resumed_run_has_them_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = results(capsys, "tictactoe", "--policies", "per-agent", *ONCE, "--run-dir", "run")
    assert set(told[0]["policy_reward_mean"]) == {"player1", "player2"}
    assert told[1] == {"saved": "run/checkpoints/000001"}
    told = results(capsys, "--resume", "run", "--stop", "training_iteration=3")
    assert [one.get("training_iteration") for one in told] == [2, 3, None]
    assert told[-1] == {"saved": "run/checkpoints/000003"}


@pytest.mark.slow
def test_a_bound_that_is_reached_already_trains_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results(capsys, "corridors:Corridor", *ONCE, "--run-dir", "run")
    again = ["corridors:Corridor", "--resume", "run", "--stop"]
    for key in ("training_iteration=1", "num_env_steps_sampled=64", "agent_timesteps_total=64"):
        assert results(capsys, *again, key) == []
        assert main(["train", *again, key]) == 0
        name, _, bound = key.partition("=")
        said, *_ = capsys.readouterr().err.splitlines()
        assert said == f"menv train: nothing to train: {name} is {bound} already, the bound of --stop"
    assert results(capsys, *again, "num_env_steps_trained=65")[0]["training_iteration"] == 2


def test_a_run_folder_that_cannot_be_used_is_refused_before_anything_is_trained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results(capsys, "corridors:Corridor", *ONCE, "--run-dir", "run")
    shutil.copytree("run", "other")
    for places, why in (
        (["corridors:Corridor", "--run-dir", "corridors.py"], "corridors.py: "),
        (["corridors:Corridor", "--run-dir", "corridors.py/run"], "corridors.py/run"),
        (["corridors:Corridor", "--run-dir", "/proc/run"], "/proc/run"),
        (["corridors:Corridor", "--run-dir", ""], "''"),
        (["corridors:Corridor", "--run-dir", "run"], "menv train --resume run"),
    ):
        assert main(["train", *places, *SMALL, "--stop", "training_iteration=2"]) in (1, 2)
        told = capsys.readouterr()
        assert len(told.out.splitlines()) == 1
        assert why in told.err


def test_a_run_that_is_refused_leaves_no_folder(folder: Path) -> None:
    assert main(["train", "corridors:Corridor", "--config", "lrr=1", "--run-dir", "run"]) == 2
    assert main(["train", "--resume", "gone"]) == 2
    assert [path.name for path in folder.iterdir() if path.is_dir()] == []


@pytest.mark.slow
def test_a_checkpoint_for_which_there_is_no_room_is_one_line(folder: Path) -> None:
    command = [sys.executable, "-m", "menv.cli", "train", "corridors:Corridor", *ONCE, "--run-dir", "run"]
    # A file of more than 16 KiB cannot be written.
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 16; exec "$@"', "bash", *command],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120, check=False,
    )  # fmt: skip
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert re.match("menv train: error: save: checkpoint 1 in run/checkpoints .*File too large", said)
    assert list(Path("run/checkpoints").iterdir()) == []


@pytest.mark.slow
def test_a_checkpoint_alone_starts_a_new_run_that_continues_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results(capsys, "corridors:Corridor", *ONCE, "--run-dir", "run")
    again = ["corridors:Corridor", "--resume", "run/checkpoints/000001", "--stop", "training_iteration=2"]
    assert results(capsys, *again)[-1] == {"saved": "runs/corridors-Corridor-PPO-001/checkpoints/000002"}
    assert results(capsys, *again)[-1] == {"saved": "runs/corridors-Corridor-PPO-002/checkpoints/000002"}


def test_a_mapping_that_was_written_by_hand_is_given_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = ["--config", "multiagent.policy_mapping_fn=@corridors:seat"]
    seats = ["--config", 'multiagent.policies=["seat_1", "seat_2"]']
    results(capsys, "tictactoe", *seats, *mapping, *ONCE, "--run-dir", "run")
    assert main(["train", "--resume", "run", "--stop", "training_iteration=2"]) == 2
    assert "['policy_mapping_fn'] was function corridors:seat" in capsys.readouterr().err
    told = results(capsys, "--resume", "run", "--stop", "training_iteration=2", *mapping)
    assert set(told[0]["policy_reward_mean"]) == {"seat_1", "seat_2"}


def test_checkpoints_are_written_now_and_then_and_the_latest_stay(folder: Path) -> None:
    often = ["--run-dir", "run", "--save-every", "2", "--keep", "2"]
    main(["train", "corridors:Corridor", *SMALL, "--stop", "training_iteration=7", *often])
    assert sorted(path.name for path in Path("run/checkpoints").iterdir()) == ["000006", "000007", "LATEST"]


def test_the_best_checkpoint_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = ["--run-dir", "run", "--keep", "1", "--keep-best", "evaluation/episode_reward_mean"]
    evaluated = ["--config", "evaluation_interval=2", "--config", "evaluation_duration=2"]
    main(["train", "corridors:Corridor", *SMALL, *evaluated, "--stop", "training_iteration=7", *best])
    scores = {
        one["training_iteration"]: one["evaluation"]["episode_reward_mean"]
        for one in Run("run").results()
        if "evaluation" in one
    }
    highest = next(step for step, score in scores.items() if score == max(scores.values()))
    kept = sorted(path.name for path in Path("run/checkpoints").iterdir() if path.is_dir())
    assert kept == sorted({f"{highest:06d}", "000007"})
    assert f"best: run/checkpoints/{highest:06d}" in capsys.readouterr().err
    assert (
        main(
            ["train", "corridors:Corridor", *SMALL, "--stop", "training_iteration=2", "--keep-best", "scores"]
        )
        == 2
    )


def test_the_library_reads_what_the_command_wrote(folder: Path) -> None:
    main(["train", "corridors:Corridor", "--run", "DQN", *ONCE[-2:], "--run-dir", "run"])
    with DQN.from_checkpoint("run", env="corridors:Corridor") as algo:
        assert algo.iteration == 1
    main(["train", "tictactoe", "--policies", "per-agent", *ONCE, "--run-dir", "played"])
    with PPO.from_checkpoint("played") as algo:
        assert algo.train()["training_iteration"] == 2


@pytest.mark.filterwarnings("ignore:policy 'default_policy'. a gradient was NaN:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:PPO. rewards of about 1e.30 with normalize_values=False:RuntimeWarning")
def test_numbers_that_json_has_no_form_for_are_null(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    plain = ["--config", "normalize_values=false"]
    assert main(["train", "corridors:Priceless", *ONCE, *plain, "--json", "--no-save"]) == 0
    (told,) = [json.loads(line, parse_constant=refuse) for line in capsys.readouterr().out.splitlines()]
    assert told["info"]["default_policy"]["vf_loss"] is None
    assert told["info"]["default_policy"]["skipped_updates"] > 0
    assert told["episode_reward_mean"] == pytest.approx(3e30)


def test_without_a_terminal_there_is_a_line_for_each_iteration(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = ["--stop", "training_iteration=2", "--no-save"]
    main(["train", "tictactoe", "--policies", "per-agent", *SMALL, *stop])
    began, title, head, *lines = capsys.readouterr().out.splitlines()
    assert began == f"menv {menv.__version__}, starting PPO in tictactoe"
    assert title == "PPO in tictactoe, policies: player1, player2"
    assert head.split()[:3] == ["iteration", "env", "steps"]
    assert [line.split()[:2] for line in lines] == [["1", "64"], ["2", "128"]]
    assert "player1" in lines[0]
    assert "player2" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["CartPole-v1", "--run", "PP0"], "'PPO'?"),
        ([], "env: "),
        (["tictactoo"], "'tictactoe'"),
        (["corridors:Corridoor"], "'corridors:Corridor'"),
        (["CartPole-v1", "--config", "lrr=1"], "'lr'"),
        (["CartPole-v1", "--config", "callbacks=@corridors:Nothing"], "Nothing"),
        (["CartPole-v1", "--config", "callbacks=@nowhere:Note"], "'nowhere'"),
        (["corridors:Nameless", "--policies", "auto"], "possible_agents"),
        (["tictactoe", "--policy", "player1=a"], "'player2'"),
        (["tictactoe", "--policy", "player1=a:DQN", "--policy", "*=a"], " a "),
        (["pettingzoo:classic/tictactoe"], "'pettingzoo:classic/tictactoe_v3'"),
        (["gone.py:Game"], "gone.py"),
        (["CartPole-v1", "--save-every", "2", "--no-save"], "--no-save"),
        (["CartPole-v1", "--import", "gone.py"], "gone.py"),
        (["CartPole-v1", *SMALL, "--stop", "episode_reward=3"], " episode_reward_m"),
        (["--resume", "gone"], " gone "),
        (["CartPole-v1", "--config", "callbacks=corridors:Note"], "@module:Name"),
        (["--resume", "gone", "--policies", "per-agent"], "--policies"),
        (["CartPole-v1", "--no-save", "--keep", "2"], "--no-save: "),
    ],
)
def test_a_wrong_setting_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert main(["train", *arguments]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("menv train: error: ")
    assert line in said


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--config", "lr"], "argument --config: 'lr'"),
        (["--config", "gone.toml"], " gone.toml: "),
        (["--config", "[1]"], "argument --config: "),
        (["--config", '{"lr": }'], "argument --config: "),
        (["--stop", "soon"], "argument --stop: "),
        (["--stop", "training_iteration=nan"], "argument --stop: "),
        (["--save-every", "0"], "argument --save-every: "),
        (["--env", "tictactoe"], "argument --env: "),
    ],
)
def test_an_argument_that_cannot_be_read_is_refused_with_the_usage(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "CartPole-v1", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert line in said
    assert "usage: menv train" in said
