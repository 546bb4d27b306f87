"""The samples of a tar that anybody may have written: members grouped, as by webdataset, by their name up to the first dot.

Nothing is unpacked. Members that are not regular files are left out, as by webdataset.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from typing import BinaryIO, NamedTuple

from vitssl.config import ConfigError

MOST_NAME_CHARS = 300  # characters of a name in a message
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
META = re.compile(r"__[^/]*__(?:$|/)")  # names that webdataset keeps for itself
# what tarfile raises on damaged or hostile headers
_BROKEN = (tarfile.TarError, OSError, ValueError, OverflowError, EOFError, IndexError, RecursionError)


class TarSample(NamedTuple):
    """The members of one sample."""

    where: str  # tar and key, for messages
    key: str  # in a form that is safe to print
    members: dict[str, tarfile.TarInfo]  # by ending, in lower case and without the first dot: jpg, cls, input.png
    problem: str | None  # why the sample cannot be used, or None

    @property
    def endings_text(self) -> str:
        """The endings of its first members, for messages."""
        return ", ".join(map(shown, islice(self.members, 5))) + ", ..." * (len(self.members) > 5)


@contextlib.contextmanager
def open_tar(path: str) -> Iterator[BinaryIO]:
    """Open a tar for reading.

    Raises:
        ConfigError: the tar is compressed, or cannot be read, here or in the body of the `with` statement.
    """
    try:
        with open(path, "rb") as stream:
            start = stream.read(8)
            if kind := next((kind for magic, kind in COMPRESSED.items() if start.startswith(magic)), None):
                raise ConfigError(f"{path}: is compressed ({kind}), so that no image can be read without all before it; uncompress it")
            stream.seek(0)
            yield stream
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def samples(stream: BinaryIO, path: str) -> Iterator[TarSample]:
    """Yield the samples of an open tar, in its order.

    Raises:
        ConfigError: the file is not a tar, is damaged from some point on, or has more data behind its end. The samples before that point
            are yielded first, except the one that it interrupts.
    """
    seen: set[str] = set()
    keyed = ((*split, member) for member in _members(stream, path) if (split := _key_and_ending(member.name)))
    for key, entries in groupby(keyed, key=lambda entry: entry[0]):
        endings = [(ending, member) for _, ending, member in entries]
        members = dict(reversed(endings))  # of several with one ending the first
        yield TarSample(f"{path}: {shown(key)}", shown(key), members, _problem(key, endings, seen))
        seen.add(key)
    _refuse_more(stream, path)


def _key_and_ending(name: str) -> tuple[str, str] | None:
    folder, slash, file = name.rpartition("/")
    key, _, ending = file.partition(".")
    return (folder + slash + key, ending.lower()) if key and ending and not META.match(name) else None


def _problem(key: str, endings: list[tuple[str, tarfile.TarInfo]], seen: set[str]) -> str | None:
    """Return why a sample of a tar cannot be used, or None."""
    if key.startswith("/") or ".." in key.split("/"):
        return "its name leads out of the folder that the tar is unpacked into"
    if key in seen:
        return "occurs a second time; a sample's members stand next to each other, and its name is its own"
    if twice := next((ending for ending, number in Counter(ending for ending, _ in endings).items() if number > 1), None):
        return f"has two members {shown(twice)}"
    if sparse := next((ending for ending, member in endings if member.issparse()), None):
        return f"its member {shown(sparse)} is stored with holes, and cannot be read as it is"
    return None


def _members(stream: BinaryIO, path: str) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of a tar."""
    last_name, last_offset, length = "", -1, os.fstat(stream.fileno()).st_size
    try:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                whole = not member.isreg() or member.issparse() or 0 <= member.size <= length - member.offset_data
                if not whole or member.offset <= last_offset:
                    raise tarfile.ReadError(f"{shown(member.name)} is not all there")
                last_offset, last_name = member.offset, member.name
                if member.isreg():
                    yield member
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it does not end as a tar does")
    except _BROKEN as error:
        problem = f"is cut short or damaged after {shown(last_name)}" if last_name else "is not a tar, or damaged at its beginning"
        raise ConfigError(f"{path}: {problem} ({' '.join(str(error).split())})") from None


def _refuse_more(stream: BinaryIO, path: str) -> None:
    """Refuse a tar with another tar put behind it: whoever reads it, including webdataset, stops at the end of the first.

    Raises:
        ConfigError: what is left is not all zeros, which tars are filled up with.
    """
    left = os.fstat(stream.fileno()).st_size - stream.tell()
    while block := stream.read(2**20):
        if block.strip(tarfile.NUL):
            reason = f"{left:,} bytes that follow its end are not read, as of tars that were put one behind the other with cat"
            raise ConfigError(f"{path}: {reason}; name those tars instead, or join them with `tar --concatenate`")


def shown(name: str) -> str:
    """Return a name from a tar in one line that does nothing to a terminal."""
    name = name if len(name) <= MOST_NAME_CHARS else f"{name[:MOST_NAME_CHARS]}..."
    return name if name.isprintable() else ascii(name)[1:-1]
