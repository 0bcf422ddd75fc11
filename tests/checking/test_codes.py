"""Codes keep their meaning: people write them into their settings."""

from __future__ import annotations

import re

from menv.checking.codes import CODES

# A code that was published stays in this table, with its severity and its meaning, also when nothing has it any
# more. New ones are added.
PUBLISHED = {
    "ME001": ("error", "a space is missing"),
    "ME002": ("error", "a space is no gymnasium space"),
    "ME003": ("error", "an agent has no space"),
    "ME004": ("error", "copies declare different spaces"),
    "ME005": ("info", "no stock network reads this space"),
    "ME006": ("info", "the agents are not listed"),
    "ME007": ("error", "no kind of environment that menv knows"),
    "ME008": ("error", "a PettingZoo environment without its wrapper"),
    "ME009": ("error", "an environment of the old gym API"),
    "ME010": ("error", "reset takes no seed or no options"),
    "ME011": ("error", "reset returns no pair"),
    "ME012": ("error", "reset returns no dict of observations"),
    "ME013": ("error", "'__all__' or '__common__' is among observations or rewards"),
    "ME014": ("error", "possible_agents is no list"),
    "ME015": ("info", "spaces are known only after a reset"),
    "ME016": ("error", "several agents in a gymnasium.Env"),
    "ME020": ("error", "step returns the wrong number of values"),
    "ME021": ("error", "a part of step is no dict"),
    "ME022": ("error", "'__all__' is missing"),
    "ME023": ("warning", "a flag is a number"),
    "ME024": ("error", "a flag is no truth value"),
    "ME025": ("error", "a reward is no number"),
    "ME026": ("error", "a reward is not finite"),
    "ME027": ("error", "a reward or flag for an unknown agent"),
    "ME028": ("warning", "an info for an agent without observation"),
    "ME029": ("error", "an info is no dict"),
    "ME030": ("error", "an observation lies outside its space"),
    "ME031": ("error", "an observation has another dtype than its space"),
    "ME032": ("error", "an observation is not finite"),
    "ME033": ("info", "an observation is a list"),
    "ME034": ("warning", "an observation is of another number type"),
    "ME040": ("warning", "truncated without a last observation"),
    "ME041": ("info", "terminated without a last observation"),
    "ME042": ("info", "an agent came back after its end"),
    "ME043": ("info", "an agent that ended is still shown"),
    "ME044": ("error", "everybody ended and '__all__' never came"),
    "ME045": ("error", "no agent acts for too long"),
    "ME046": ("info", "'__all__' came later than the last agent's end"),
    "ME047": ("warning", "an agent that is not in possible_agents"),
    "ME048": ("warning", "one agent id in two types"),
    "ME049": ("info", "no episode ended"),
    "ME050": ("error", "a mask allows nothing"),
    "ME051": ("error", "the mask does not fit the actions"),
    "ME052": ("error", "a mask lies outside its space"),
    "ME053": ("error", "an allowed action raises"),
    "ME054": ("info", "a mask that is not read"),
    "ME060": ("error", "the same seed gives another episode"),
    "ME061": ("warning", "draws from a generator of the whole process"),
    "ME062": ("error", "sub-environments share their episodes"),
    "ME063": ("warning", "every reset without a seed repeats one episode"),
    "ME070": ("info", "observations are one buffer"),
    "ME071": ("warning", "step changes the dict of actions"),
    "ME072": ("error", "step writes into an action"),
    "ME073": ("warning", "writing into an observation changes the episode"),
    "ME074": ("info", "infos are one dict"),
    "ME075": ("info", "the environment changes its env_config"),
    "ME076": ("error", "sub-environments influence each other"),
    "ME077": ("error", "the creator returns one object twice"),
    "ME080": ("error", "close raises"),
    "ME081": ("warning", "a second close raises"),
    "ME082": ("warning", "close leaves threads or processes"),
    "ME090": ("error", "step raised"),
    "ME091": ("error", "reset raised"),
    "ME092": ("error", "the environment could not be created"),
    "ME093": ("error", "the creator does not take an EnvContext"),
    "ME094": ("error", "a given action lies outside its space"),
    "ME095": ("info", "the environment warns"),
    "ME096": ("info", "a step takes long"),
    "ME097": ("error", "the wrong number of values"),
    "ME098": ("error", "the autoreset mode is not said"),
    "ME099": ("error", "an autoreset loses the last observation"),
    "ME100": ("error", "a table contradicts itself"),
    "ME101": ("error", "a last observation is the first one of the next episode"),
    "ME102": ("warning", "an agent is paid in an episode in which it never acts"),
    "ME103": ("error", "rewards of a PettingZoo game are never accumulated"),
}


def test_every_code_is_published_with_its_severity_and_meaning() -> None:
    assert {code: (entry.severity, entry.title) for code, entry in CODES.items()} == PUBLISHED


def test_codes_are_sorted_and_have_one_form() -> None:
    assert list(CODES) == sorted(CODES)
    assert all(re.fullmatch(r"ME\d{3}", code) for code in CODES)


def test_every_code_says_what_to_do() -> None:
    for code, entry in CODES.items():
        assert len(entry.fix) > 10, code
        assert not entry.fix.endswith("."), code
        assert "\n" not in entry.fix, code
