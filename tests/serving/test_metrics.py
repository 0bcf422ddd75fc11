"""What a server says of itself: /health, /metrics, and its log."""

from __future__ import annotations

import logging
import re
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from menv.serving import Access
from tests.serving.doors import HTTP
from tests.serving.served import Served, obs_of, served
from tests.serving.voices import Turns, Voice

TOKEN = "a long and random text"


def page(one: Served, path: str, token: str | None = None) -> str:
    host, port = one.envs.addresses[0]
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{host}:{port}{path}", headers=headers)
    ) as answer:
        return str(answer.read().decode())


def figures(one: Served, token: str | None = None) -> dict[str, float]:
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(page(one, "/metrics", token))
        for sample in family.samples
    }


def test_metrics_count_what_clients_do_on_two_servers_of_one_process() -> None:
    with served(doors=(HTTP,)) as one, served(doors=(HTTP,)) as other, one.sampling():
        with Voice(HTTP, one.envs.addresses[0]) as voice:
            voice.greet()
            turns = Turns(voice, "mine")
            turns.act(obs_of(0))
            turns.act(obs_of(1))
            assert voice.ask("GET_ACTION", episode_id="unknown", observation=obs_of(0))["type"] == "ERROR"
            voice.bring(
                {
                    "obs": [obs_of(0)] * 2,
                    "actions": [0],
                    "rewards": [1.0],
                    "is_terminated": True,
                    "is_truncated": False,
                }
            )
            found = figures(one)
        assert (found["menv_clients"], found["menv_open_episodes"], found["menv_actions_total"]) == (1, 1, 2)
        assert found["menv_action_latency_seconds_bucket +Inf"] == 2
        assert found["menv_action_latency_seconds_sum"] > 0
        assert found["menv_refusals_total unknown_episode"] == 1
        assert figures(other)["menv_actions_total"] == 0


def test_health_needs_no_token_and_metrics_need_the_servers() -> None:
    with served(doors=(HTTP,), settings={"access": Access(token=TOKEN)}) as one:
        assert page(one, "/health") == "ok\n"
        for wrong in (None, "another"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                page(one, "/metrics", wrong)
        assert figures(one, TOKEN)["menv_clients"] == 0


def test_connections_and_refusals_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "menv.serving"),
        served(doors=(HTTP,)) as one,
        Voice(HTTP, one.envs.addresses[0]) as voice,
    ):
        voice.greet()
        voice.refused("NO_SUCH_TYPE")
    said = [record.getMessage() for record in caplog.records if record.name == "menv.serving"]
    assert [re.sub(r"127.*?\d( |$)|: .*", "", line) for line in said] == [
        "serving at ", "http client connected", "refused, unknown_type", "http client left", "stopped",
    ]  # fmt: skip
