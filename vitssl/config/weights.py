"""Names of weights from outside a sweep: a model that timm has released, or a file to import."""

from __future__ import annotations

from pathlib import Path

from vitssl.config.base import ConfigError, unknown_error

RELEASED = "timm:"  # timm:NAME
IMPORT = "import:"  # import:LAYOUT:FILE
LAYOUTS = ("mae", "dino", "ssat", "gmml", "sit", "lut", "drloc", "deit", "timm")  # codes whose names and keys a file may have
FOLDER = Path("weights")  # what was fetched or imported; in the working directory, like shards/
NO_SHARDS = "none"  # data.shards of a run that was imported without shards


def layout_and_file(value: str, field: str = "") -> tuple[str, Path]:
    """Return LAYOUT and FILE of ``import:LAYOUT:FILE``.

    Raises:
        ConfigError: ``value`` has another form, or there is no such layout.
    """
    layout, _, file = value.removeprefix(IMPORT).partition(":")
    if not file:
        raise ConfigError(f"{value!r} is not import:LAYOUT:FILE, for example import:mae:checkpoint.pth ({', '.join(LAYOUTS)})", field)
    if layout not in LAYOUTS:
        raise unknown_error(layout, LAYOUTS, field)
    return layout, Path(file)


def imported_folder(layout: str, file: Path, sha256: str) -> Path:
    """Return the folder of an import of ``file``, unless the user names another one; it depends on the content of the file."""
    return FOLDER / f"{file.stem}-{layout}-{sha256[:8]}"
