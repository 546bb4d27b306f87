"""Which runs a word on a command line or in a sweep names: one rule for all commands. This reads no files."""

from __future__ import annotations

from collections.abc import Sequence

from vitssl.config import ConfigError
from vitssl.words import few


def matches(word: str, names: Sequence[str], anywhere: bool = False) -> list[str]:
    """Return those of ``names``, which are names of run folders, that ``word`` stands for, by the first of these rules that any name fits.

    1. ``word`` is the name, with or without the hash at its end.
    2. The name begins with ``word``, up to the end of one of its words (ssat-s1 does not stand for ssat-s10-0123). It may end within the
       hash, or within any word if ``word`` ends in a star or a dash.
    3. ``word`` has several words, of which the first begins the name and the others follow in this order: ssat-s1 stands for
       ssat-equal_epochs-s1-0123.
    4. With ``anywhere``, the name has all words of ``word`` in this order: finetune-s1 stands for sslft-finetune-equal_epochs-s1-0123.
    """
    if not word:
        return []
    begin, is_open = word.rstrip("*"), word.endswith(("*", "-"))
    words = begin.strip("-").split("-")
    return (
        [name for name in names if word in (name, name.rpartition("-")[0])]
        or [name for name in names if _begins(name, begin, is_open)]
        or [name for name in names if _has_words(name, words)]
        or [name for name in names if anywhere and _has_words(f"-{name}", ["", *words])]
    )


def _begins(name: str, begin: str, is_open: bool) -> bool:
    """Whether ``name`` begins with ``begin``, which ends with a word or within the last one; anywhere if it ``is_open``."""
    rest = name.removeprefix(begin)
    return name.startswith(begin) and (is_open or rest.startswith("-") or "-" not in rest)


def _has_words(name: str, words: list[str]) -> bool:
    """Whether ``name`` begins with the first of ``words``, of which there are several, and has the others in their order."""
    name_words = iter(name.split("-"))
    # each word is looked for after the one before
    return len(words) > 1 and next(name_words) == words[0] and all(word in name_words for word in words[1:])


def refuse_several(typed: str, found: Sequence[str], advice: str = "", field: str = "", place: str = "") -> None:
    """Refuse what the user ``typed`` for one run if it stands for several, whose names are ``found``.

    Args:
        advice: how several runs may be named, if they may.
        field: the dotted path of the field that names the run.
        place: where the error is, as in a ConfigError.

    Raises:
        ConfigError: names the runs.
    """
    if len(found) > 1:
        raise ConfigError(f"{typed} stands for {len(found)} runs: {few(found)}; name one{advice}", field, place)
