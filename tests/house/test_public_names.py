"""Public names, parameters, defaults and options of commands change only where someone means them to."""

import difflib
import inspect

import gymnasium

from tests.house.public_names import PACKAGES, PAGE, exported, member_lines, members, page


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


def test_public_names_and_methods_have_docstrings_or_inherit_them() -> None:
    names = {f"{package}.{name}": value for package in PACKAGES for name, value in exported(package).items()}
    assert [name for name, value in names.items() if not inspect.getdoc(value)] == []
    assert [
        f"{name}.{key}"
        for name, value in names.items()
        if isinstance(value, type)
        for key, member in members(value).items()
        if _is_method(member)
        and not key.startswith("__")
        and not inspect.getdoc(getattr(value, key))
        and f"{key}:" not in str(value.__doc__)
    ] == []


def _is_method(member: object) -> bool:
    return inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)


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
