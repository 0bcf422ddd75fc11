"""The page of the command line: its commands run as printed, its settings are read."""

import io
import shlex
from pathlib import Path

import pytest

from menv.algorithms import PPOConfig
from menv.cli.arguments import merge, read_settings, with_objects
from menv.cli.main import main
from tests.doc_blocks import blocks

PAGE = "docs/reference/command_line.md"


@pytest.mark.slow
def test_the_commands_and_the_python_blocks_run_as_printed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("3\n"))
    for line in "".join(blocks(PAGE, "sh")).splitlines():
        program, *arguments = shlex.split(line)
        assert (program, main(arguments)) == ("menv", 0)
    for block in blocks(PAGE, "python"):
        exec(compile(block, PAGE, "exec"), {})
    said = capsys.readouterr().out
    assert "saved run/checkpoints/000005" in said
    assert "50 episodes, mean return" in said
    assert "tictactoe: nothing found" in said
    assert "wrote three.gif" in said
    assert "player1, your move: 0 top left" in said


def test_the_file_of_settings_means_what_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    block, _ = blocks(PAGE, "toml")
    Path("league.toml").write_text(block)
    Path("league.py").write_text("def who_plays(agent): return 'main'\nclass Ratings: ...\n")
    settings = with_objects(merge(read_settings("league.toml"), read_settings("lr=0.0005")))
    assert settings["lr"] == 0.0005
    assert settings["multiagent"]["policy_mapping_fn"]("player1") == "main"
    assert settings["callbacks"].__name__ == "Ratings"
    assert settings["model"] == {"fcnet_hiddens": [128, 128]}


def test_the_zoo_file_of_ones_own_has_the_settings_that_it_shows(tmp_path: Path) -> None:
    _, block = blocks(PAGE, "toml")
    (tmp_path / "my.toml").write_text(block)
    found = PPOConfig.from_zoo("CartPole-v1", f"{tmp_path}/my.toml:MAPPO")
    assert (found.lr, found.critic_obs) == (1e-3, "all_agents")
