"""The codes of findings: severity, title and fix of each, and `FindingCollector`, which gathers findings.

A removed code is not used again. `docs/reference/checking.md` shows each with a wrong and a right example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Self, TypeAlias

from menv.errors import ConfigError, ContractError

Severity: TypeAlias = Literal["error", "warning", "info"]
"""error: menv refuses it, or training on it is wrong. warning: it works with a limitation. info: it works."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of `check_env`; `str(finding)` is one line.

    Attributes:
        code: Stable name, such as "ME022"; `docs/reference/checking.md` has a wrong and a right example of each.
        severity: "error", "warning" or "info".
        step: Env steps taken since the check began when it showed first, 0 in the first reset; None where
            no env step is to blame.
        message: What is wrong, with values, and what was expected.
        fix: What to do about it.
    """

    code: str
    severity: Severity
    step: int | None
    message: str
    fix: str

    def __str__(self) -> str:
        at = "" if self.step is None else f", env step {self.step}"
        return f"{self.code} {self.severity}{at}: {self.message}; {self.fix}"


class Code(NamedTuple):
    """One kind of finding; a finding may bring a more specific `fix`."""

    severity: Severity
    title: str
    fix: str


CODES: Final[Mapping[str, Code]] = {
    "ME001": Code("error", "a space is missing or is not a gymnasium space", "declare spaces of gymnasium.spaces in "
                  "__init__"),
    "ME003": Code("error", "an agent has no space", "declare a space for every agent that may appear"),
    "ME004": Code("error", "copies declare different spaces", "declare the same spaces in every copy, whatever its "
          "context"),
    "ME005": Code("info", "no stock network reads this space", "use Box, Discrete, MultiDiscrete, MultiBinary, "
                  "or Dict and Tuple of these (for actions no MultiBinary), or bring your own policy"),
    "ME006": Code("info", "the agents are not listed", "set possible_agents to all agents that may ever appear"),
    "ME007": Code("error", "menv does not know this kind of environment", "subclass gymnasium.Env, menv.MultiAgentEnv, "
                  "menv.VectorEnv or menv.BaseEnv"),
    "ME010": Code("error", "reset takes no seed or no options", "declare reset(self, *, seed=None, options=None)"),
    "ME011": Code("error", "reset does not return a pair", "return (obs, info) from reset"),
    "ME012": Code("error", "reset does not return a dict of observations", "return {agent_id: obs} of the agents that "
          "act"),
    "ME014": Code("error", "possible_agents is not a list", "set possible_agents to a list of agent ids"),
    "ME020": Code("error", "step returns the wrong number of values", "return (obs, reward, terminated, truncated, "
                  "info); split the old `done` into terminated and truncated"),
    "ME021": Code("error", "a part of step is not a dict by agent", "return five dicts keyed by agent id; keep "
                  "'__all__' to the flag dicts and '__common__' to infos"),
    "ME022": Code("error", "'__all__' is missing", "set '__all__' in terminateds and in truncateds in every step"),
    "ME024": Code("error", "a flag is not a bool", "return True or False"),
    "ME025": Code("error", "a reward is not a number", "return a float"),
    "ME026": Code("error", "a reward is not finite", "look for a division by zero or an overflow"),
    "ME027": Code("error", "a reward or flag for an unknown agent", "check the spelling of the agent id"),
    "ME029": Code("error", "an info is not a dict", "return a dict, empty if there is no info"),
    "ME030": Code("error", "an observation is outside its space", "fix the observation, or declare the space "
                  "that contains it, in the environment or as observation_space in the config"),
    "ME031": Code("error", "an observation has another dtype than its space", "convert it with .astype, or declare "
                  "the space with the dtype that you return"),
    "ME032": Code("error", "an observation is not finite", "look for a division by zero or an overflow"),
    "ME034": Code("warning", "an observation is converted", "return a numpy array of the space's type, or declare the "
                  "space with the type that you return; the conversion takes time"),
    "ME040": Code("warning", "truncated without a last observation", "return the last observation with the flag; "
                  "the value of what was cut off is estimated from it"),
    "ME045": Code("error", "no agent acts for too long", "return an observation for an agent that acts next, or end "
                  "the episode with '__all__' in the step in which the last agent ends"),
    "ME047": Code("warning", "an agent that is not in possible_agents", "list it there, so that its policy can be "
                  "looked up before the first step"),
    "ME049": Code("info", "no episode ended", "check for longer (env_steps), or add a time limit"),
    "ME050": Code("error", "a mask allows no action", "allow at least one action, or return no observation for the "
          "agent"),
    "ME051": Code("error", "the mask does not fit the actions", "declare one flag for each choice of the action space"),
    "ME052": Code("error", "a mask is outside its space", "return the mask with the shape and dtype of its space"),
    "ME054": Code("info", "a mask that is not read", "put it into the observation, as the entry 'action_mask' of a "
                  "Dict space"),
    "ME060": Code("error", "the same seed gives a different episode", "draw everything from a generator that "
                  "reset(seed=...) makes, such as self.np_random"),
    "ME061": Code("warning", "draws from a global random generator", "use the environment's own generator; seed= seeds "
          "the global one once for each process, and all sub-environments in it "
                  "share it"),
    "ME062": Code("error", "sub-environments share their episodes", "make the generator from reset's seed, not "
                  "from a constant"),
    "ME076": Code("error", "sub-environments influence each other", "keep state on the instance, not on the class or "
                  "the module"),
    "ME077": Code("error", "the creator returns one object twice", "create the environment inside the creator"),
    "ME080": Code("error", "close raises", "free in close only what exists"),
    "ME090": Code("error", "step raised", "fix the environment; its own message is above. If it refuses an action that "
                  "is illegal in this state, show a mask of the legal ones: {'observation': ..., 'action_mask': ...}"),
    "ME091": Code("error", "reset raised", "fix the environment; its own message is above"),
    "ME092": Code("error", "the environment could not be created", "fix its constructor or module"),
    "ME095": Code("info", "the environment warns", "read the warning"),
    "ME096": Code("info", "steps are slow", "use more workers, or separate processes for sub-environments"),
    "ME097": Code("error", "the wrong number of values", "return one value for each of the num_envs sub-environments"),
    "ME099": Code("error", "an autoreset loses the last observation", "put it into infos['final_obs']"),
    "ME100": Code("error", "an environment violates its interface in another way", "fix what it returns"),
    "ME101": Code("error", "a last observation is the first one of the next episode", "return a copy of the "
                  "observation from step, so that the reset cannot write into it"),
    "ME102": Code("warning", "an agent is paid in an episode in which it never acts", "let it observe and act before "
                  "the episode ends; its reward counts in its return, and no policy learns from it"),
    "ME103": Code("error", "rewards of a PettingZoo game are never accumulated", "call self._accumulate_rewards() at "
                  "the end of step"),
}  # fmt: skip


class Broken(ContractError):  # noqa: N818 - describes the environment
    """The environment cannot be stepped further. `fix` None stands for the code's own."""

    def __init__(self, code: str, message: str, step: int | None = None, fix: str | None = None) -> None:
        super().__init__(message, code)
        self.message = message
        self.step = step
        self.fix = fix

    @classmethod
    def of(cls, error: ContractError, step: int | None = None) -> Self:
        """Return the error of an adapter as a finding."""
        if isinstance(error, cls):
            return error
        message, _, fix = str(error).rpartition("; ")
        return cls(error.finding or "ME100", message, step, fix)


class FindingCollector:
    """Gathers findings, each fault once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def __contains__(self, code: str) -> bool:
        return any(found == code for found, _ in self._found)

    def add(
        self, code: str, message: str, step: int | None = None, *, about: str = "", fix: str | None = None
    ) -> None:
        """Report a fault, unless the same `code` and `about` (such as the path in a space) were reported before."""
        known = CODES[code]
        self._found.setdefault(
            (code, about), Finding(code, known.severity, step, _one_line(message), fix or known.fix)
        )

    def take(self, broken: Broken, where: str = "") -> None:
        self.add(broken.finding, where + broken.message, broken.step, fix=broken.fix)

    def findings(self, ignored: Iterable[str]) -> list[Finding]:
        """Return the findings, sorted by severity, env step and code."""
        silent = set(ignored)
        order = ("error", "warning", "info")
        found = [finding for finding in self._found.values() if finding.code not in silent]
        return sorted(
            found, key=lambda f: (order.index(f.severity), -1 if f.step is None else f.step, f.code)
        )


def checked_codes(codes: Iterable[str], where: str) -> frozenset[str]:
    """Return codes to ignore; raise ConfigError for unknown ones."""
    if not isinstance(codes, Iterable):
        raise ConfigError(f'{where}: {codes!r:.100}, expected codes of findings; write ("ME031",)')
    asked = frozenset((codes,) if isinstance(codes, str) else codes)
    unknown = sorted(map(str, asked.difference(CODES)))
    if unknown:
        raise ConfigError(
            f"{where}: {unknown} are not codes of findings, expected some of {min(CODES)} to {max(CODES)}; "
            "docs/reference/checking.md lists all codes"
        )
    return asked


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]
