"""How weights from outside a sweep are named: a released model of timm's, or a file that is to be imported."""

from __future__ import annotations

from pathlib import Path

from vitssl.config.base import ConfigError, unknown

RELEASED = "timm:"  # timm:NAME
IMPORT = "import:"  # import:LAYOUT:FILE
LAYOUTS = ("mae", "dino", "ssat", "gmml", "sit", "lut", "drloc", "deit", "timm")  # whose names and keys a file has
FOLDER = Path("weights")  # in the working directory, as shards/ is: what was fetched or imported
NO_SHARDS = "none"  # data.shards of an imported run that was given none


def layout_and_file(value: str, field: str = "") -> tuple[str, Path]:
    """The parts of ``import:LAYOUT:FILE``.

    Raises:
        ConfigError: it has another form, or there is no such layout.
    """
    layout, _, file = value.removeprefix(IMPORT).partition(":")
    if not file:
        raise ConfigError(f"{value!r} is not import:LAYOUT:FILE, for example import:mae:checkpoint.pth ({', '.join(LAYOUTS)})", field)
    if layout not in LAYOUTS:
        raise unknown(layout, LAYOUTS, field)
    return layout, Path(file)


def imported_folder(layout: str, file: Path, sha256: str) -> Path:
    """Where an import of that file is, unless another folder is named; a file with other content has another one."""
    return FOLDER / f"{file.stem}-{layout}-{sha256[:8]}"
