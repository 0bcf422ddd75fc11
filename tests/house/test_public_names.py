"""Public names, parameters, defaults and options of commands change only where someone means them to."""

import difflib

import gymnasium

from tests.house.public_names import PAGE, member_lines, page


def test_the_public_names_are_those_of_the_file() -> None:
    before, now = PAGE.read_text("utf-8").splitlines(), page().splitlines()
    changed = [
        line
        for line in difflib.unified_diff(before, now, n=0, lineterm="")
        if line[:2] not in ("--", "++", "@@")
    ]
    report = "\n".join(changed)
    assert changed == [], (
        f"public names changed:\n{report}\nIf that is meant: python -m tests.house.public_names --write"
    )


def test_members_of_menv_are_listed_by_parameters_and_defaults_and_others_are_not() -> None:
    class Base:
        """A base.

        Attributes:
            size: In rows.
        """

        __module__ = "menv.base"
        rate: float

        def play(
            self, action: dict[str, int], *, seed: type = gymnasium.Env, most: object = Ellipsis
        ) -> None: ...

        def _hidden(self) -> None: ...

    class Wrapper(Base, gymnasium.Wrapper[int, int, int, int]):
        __module__ = "menv.wrapper"

        @classmethod
        def of(cls, name: str = "it") -> None: ...

        @property
        def length(self) -> int:
            return 0

    assert sorted(member_lines(Wrapper)) == [
        "length",
        "of(cls, name='it') classmethod",
        "play(self, action, *, seed=Env, most=...)",
        "rate",
        "size",
    ]
