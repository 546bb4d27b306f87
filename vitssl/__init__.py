"""vitssl: train Vision Transformers on scarce data, and know what each way costs.

The stable public API is small: ``vitssl.load(run_folder)`` gives a trained model with ``.predict(images)``, and everything
else is reached through a sweep file and the command line.

A tensor's name ends in its shape: ``tokens_BND`` is (B, N, D), ``sizes_B2`` is (B, 2). The letters mean the following, unless a line
"Shapes:" at the top of a file gives them another meaning:

    B    images of this rank's part of a batch      V    views, or copies of a view
    C    channels (RGB if there are three)          S    pixels per side of a square image
    H W  rows and columns of pixels or of a map     h w  rows and columns of a coarser grid
    N    patch tokens (of the output grid)          M    kept patch tokens of a masked pass
    P    prefix tokens: class token, registers      J    extra tokens, after the patches
    T    all P + N + J tokens of a sequence         D    width of a token
    A    attention heads                            d    width of a head
    K    classes, or prototypes                     E    pixel values of a patch
    R    rows of this rank in a contrastive loss
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from vitssl.trained import load


def __getattr__(name: str) -> Any:
    """Import ``load`` on demand: a launcher imports this package on machines without torch."""
    if name == "load":
        from vitssl.trained import load

        return load
    raise AttributeError(f"module 'vitssl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
