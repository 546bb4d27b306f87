"""What all commands have in common: they report a mistake in one line on stderr, without a traceback, and exit with code 2."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitssl.config import ConfigError, unknown_error
from vitssl.config.base import closest, did_you_mean
from vitssl.config.suggestions import suggest_fields
from vitssl.files import full_disk_error
from vitssl.words import one_line, print_line

TEMPORARY, NAMED = re.compile(rf"(^|/)\.([^/]+?)\.{os.getpid()}\.tmp$"), r"\1\2"  # a file while this process writes it, and its final name


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that says what was probably meant.

    Attributes:
        takes_fields: whether the command takes key=value too, so that ``--lr 3`` was probably meant as such a word.
        own_keys: {option: keys that were probably meant}, which come before the fields of a Run.
        elsewhere: {command or option that people look for here: what to type instead}.
    """

    takes_fields = False
    own_keys: Mapping[str, list[str]] = MappingProxyType({})
    elsewhere: Mapping[str, str] = MappingProxyType({})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but refuse unknown options first; argparse would first ask for missing arguments."""
        self._words = words = sys.argv[1:] if args is None else list(args)
        end = words.index("--") if "--" in words else len(words)
        if self._subparsers is not None:  # words after the command are for the command
            end = next((i for i, word in enumerate(words[:end]) if not word.startswith("-")), end)
        for name in (word.split("=")[0] for word in words[:end]):
            known = self._are_flags(name) or any(option.startswith(name) for option in self._own)
            if re.fullmatch(r"--[a-z][\w.-]*|-[a-z][\w.-]+", name) and not known:
                self.error(f"unrecognized arguments: {name}")
        return super().parse_known_args(words, namespace)

    def _are_flags(self, word: str) -> bool:
        """Whether ``word`` is several short options in one, the last perhaps with its value, as in -fn40."""
        for letter in word[1:]:
            action = self._option_string_actions.get(f"-{letter}")
            if action is None or letter == "h":
                return False
            if action.nargs != 0:
                return True
        return True

    @property
    def _own(self) -> list[str]:
        return sorted(option for action in self._actions for option in action.option_strings if option.startswith("--"))

    def error(self, message: str) -> Any:
        if message == "unrecognized arguments: --resume":
            message += " (repeat the command to continue: finished runs are kept)"
        elif word := re.match(r"unrecognized arguments: --?(\w[\w.-]*)", message):
            key = word[1].replace("-", "_")
            fields = [f"{name}=VALUE" for name in (self.own_keys.get(key) or suggest_fields(key))] if self.takes_fields else []
            instead = [self.elsewhere[f"--{key}"]] if f"--{key}" in self.elsewhere else []
            suggestions = instead or fields or [f"--{name}" for name in closest(word[1], [option[2:] for option in self._own])]
            message += did_you_mean(suggestions)
        elif message.startswith("unrecognized arguments: "):
            several = sum((Path(word) / "run.yaml").is_file() for word in self._words) > 1
            message += " (one run at a time)" if several else " (a name with spaces needs quotes, and a list commas without spaces)"
        elif missing := re.match(r"(the following arguments are required: )(.*)", message):
            message = missing[1] + ", ".join(f"{name}{self._meaning(name)}" for name in missing[2].split(", "))
            message += "; an unquoted & ends a command" if any("?" in word for word in self._words) else ""
        elif missing := re.match(r"argument (--\w+): expected", message):
            message += self._meaning(missing[1])
        self.exit(2, f"error: {message}; see {self.prog} --help\n")

    def _meaning(self, name: str) -> str:
        """Return an argument's choices, or else the first words of its help, in parentheses; empty if it has neither."""
        argument = next((action for action in self._actions if name in (action.dest, action.metavar, *action.option_strings)), None)
        if argument is not None and isinstance(argument.choices, tuple):
            return f" ({', '.join(argument.choices[:-1])} or {argument.choices[-1]})"
        return f" ({re.split('[;:] ', argument.help)[0]})" if argument is not None and argument.help else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            elsewhere = self.elsewhere.get(value)
            reason = f"{value!r} is not a command of {self.prog}; {elsewhere}" if elsewhere else str(unknown_error(value, action.choices))
            raise argparse.ArgumentError(action, reason)


def guarded(call: Callable[[], int | None], advice: str = "") -> int:
    """Run a command and return its exit code. A user's mistake is reported in one line, and the code is 2.

    Args:
        call: the command; it returns the exit code, or None for 0.
        advice: what to do if a file cannot be read or written.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without some letter shows another; it does not end the command
    try:
        code = call() or 0
        sys.stdout.flush()  # here, where BrokenPipeError is expected
        return code
    except ConfigError as error:
        print_line(f"error: {error}")
        return 2
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, RuntimeError) as error:
        if (reason := _of_a_file(error)) is None:
            raise
        print_line(one_line(f"error: {reason}{advice}"))
        return 2
    except KeyboardInterrupt as error:  # whose text, if there is one, says what is left of the command's work
        print(f"interrupted: {error}" if str(error) else "interrupted", file=sys.stderr)
        return 130


def _of_a_file(error: BaseException | None) -> str | None:
    """Return why a file could not be read or written, such as a full disk; None for an error of another kind."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{TEMPORARY.sub(NAMED, str(error.filename2 or error.filename))}: {error.strerror}"
    full = full_disk_error(error)
    return f"{full.strerror} where a file was to be written; make room, or choose another place" if full else None
