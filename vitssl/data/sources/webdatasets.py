"""The source wds: somebody's WebDataset, a set of tars that stay where they are.

    wds:TARS?test=TARS              TARS is a path in which {000..146} stands for each of these numbers, {a,b} for each of these words and
                                    * for anything; the first are for training. test, val and unlabeled are relative to the folder of
                                    the first, unless they are absolute
    image=jpg;png                   the endings of the members that are images, instead of all known image endings
    label=cls                       the ending of the members that hold a sample's label, a number or a name; or json.FIELD, if it is
                                    in FIELD (or FIELD.FIELD) of the member ending in json
    classes=FILE                    the names of the classes, one a line, in the order of their numbers

Without such a file, the classes are the numbers up to the highest label in the training tars or, if not all labels are numbers, the names
that occur there, sorted. Here tars are listed, not read.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from itertools import chain, islice
from pathlib import Path

from vitssl.config import ConfigError
from vitssl.data import UNLABELLED
from vitssl.data.sources import lists
from vitssl.data.sources.folders import IMAGE_ENDINGS
from vitssl.data.sources.samples import Options, Sample, Tars, refuse_repeated_options

SPLITS = ("test", "val", "unlabeled")
OPTIONS = (*SPLITS, "image", "label", "classes")
ENDINGS = [ending.removeprefix(".") for ending in IMAGE_ENDINGS]
LABEL = "cls"
MOST_TARS = 1_000_000


def open_tars(pattern: str, options: Options) -> Tars:
    """List the tars of a WebDataset, and say how to read them.

    Raises:
        ConfigError: tars are missing, or options fit nothing; the message is one line.
    """
    pattern = str(Path(pattern).expanduser())
    refuse_repeated_options(f"wds:{pattern}", options, (*SPLITS, "image"))
    training = expanded(pattern)
    _refuse_no_test(pattern, options)
    folder = os.path.dirname(pattern)
    others = {split: [os.path.join(folder, item) for item in options[split]] for split in SPLITS if split in options}
    tars = {"train": training} | {split: list(chain.from_iterable(map(expanded, items))) for split, items in others.items()}
    _refuse_twice(pattern, [tar for paths in tars.values() for tar in paths])
    parent = os.path.commonpath([os.path.dirname(tar) for paths in tars.values() for tar in paths])
    splits = {split: [Sample(os.path.relpath(tar, parent), UNLABELLED, tar) for tar in paths] for split, paths in tars.items()}
    classes = _class_names(Path(folder, options["classes"][-1]).expanduser()) if "classes" in options else []
    endings = [ending.strip().removeprefix(".").lower() for ending in re.split("[;,]", ";".join(options.get("image", ENDINGS)))]
    return Tars(name_of(pattern), classes, splits, tuple(endings), *_member_and_field(pattern, options.get("label", [LABEL])[-1]))


def name_of(pattern: str) -> str:
    """Return the name of a WebDataset: how its training tars' names begin, without "train" and a number, or else their folder's name."""
    path = Path(pattern).absolute()
    names = (
        re.split(r"[{*]", name.removesuffix(".tar"))[0].rstrip("-_.") for name in (path.name, path.parent.name, path.parent.parent.name)
    )
    return next(filter(None, (re.sub(r"(^|[-_.])train(ing)?([-_.]?\d+)?$", "", name) for name in names)), "wds")


def has_tars(pattern: str) -> bool:
    """Whether all tars of a pattern exist."""
    try:
        return bool(expanded(str(Path(pattern).expanduser())))
    except ConfigError:
        return False


def expanded(pattern: str) -> list[str]:
    """Return the absolute paths of the tars that a pattern names, in its order.

    Raises:
        ConfigError: a tar does not exist, or none matches.
    """
    names = _without_braces(pattern)
    paths = [path for name in names for path in (_matching(name) if "*" in name else [name])]
    if missing := [path for path in paths if not os.path.isfile(path)]:
        more = f" (and {len(missing) - 1:,} more of {len(paths):,})" if len(missing) > 1 else ""
        raise ConfigError(f"wds:{pattern}: there is no tar {missing[0]}{more}")
    if not paths:
        numbers = "; * stands for anything, and {0..9} for numbers" if re.search(r"[\[?]", pattern) else ""
        raise ConfigError(f"wds:{pattern}: no tar matches {pattern}{numbers}")
    return [os.path.abspath(path) for path in paths]


def _matching(name: str) -> list[str]:
    """Return the files that match ``name``, in which only * stands for anything: folders may have brackets in their names."""
    return sorted(glob.glob("*".join(map(glob.escape, name.split("*")))))


def _without_braces(pattern: str) -> list[str]:
    """Return the names that a pattern with braces stands for."""
    from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined]  # its stubs lack the error

    for first, last in re.findall(r"(\d+)\.\.(\d+)", pattern):  # before all of them are listed in memory
        if abs(int(last[:20]) - int(first[:20])) >= MOST_TARS:
            raise ConfigError(f"wds:{pattern}: {{{first}..{last}}} are more than {MOST_TARS:,} tars")
    try:
        names = list(islice(braceexpand(pattern, escape=False), MOST_TARS + 1))
    except UnbalancedBracesError:
        raise ConfigError(f"wds:{pattern}: a brace is open; expected, for example, train-{{000..146}}.tar") from None
    if len(names) > MOST_TARS:
        raise ConfigError(f"wds:{pattern}: names more than {MOST_TARS:,} tars")
    return names


def _refuse_no_test(pattern: str, options: Options) -> None:
    """Raise a ConfigError if the options name no tars to test on."""
    share = "test" in options and re.fullmatch(r"0?\.\d+", options["test"][-1])
    if "test" in options and not share:
        return
    reason = f"test={options['test'][-1]} would divide tars, which stay as they are" if share else "no test split"
    raise ConfigError(f"wds:{pattern}: {reason}; name the tars to test on, as in 'wds:{pattern}?test=test-{{000..009}}.tar'")


def _refuse_twice(pattern: str, tars: list[str]) -> None:
    if twice := next((tar for tar, number in Counter(tars).items() if number > 1), None):
        raise ConfigError(f"wds:{pattern}: {twice} is named twice; each tar belongs to one split")


def _member_and_field(pattern: str, label: str) -> tuple[str, tuple[str, ...]]:
    """Return the ending of the members that the option ``label`` names, and the field in their JSON, empty for other members."""
    member, json, field = label.removeprefix(".").partition("json.")
    if member.endswith("json") or (json and not field):
        raise ConfigError(f"wds:{pattern}: label={label} does not say where in the JSON the label stands; write label=json.FIELD")
    return (member + json).removesuffix(".").lower(), tuple(field.split(".")) if field else ()


def _class_names(file: Path) -> list[str]:
    names = [line.strip() for line in lists.read_text(file).splitlines() if line.strip()]
    if not names:
        raise ConfigError(f"{file}: names no classes; expected one on each line")
    if twice := next((name for name, number in Counter(names).items() if number > 1), None):
        raise ConfigError(f"{file}: names class {twice!r} twice")
    numbers = [(k, name) for k, name in enumerate(names) if name.isdecimal() and name != str(k)]
    if numbers:
        k, name = numbers[0]
        raise ConfigError(f"{file}: calls class {k} {name!r}, a number that a label may mean; write names")
    return names
