"""vitssl: train Vision Transformers on scarce data, and know what each way costs.

The stable public API is small: ``vitssl.load(run_folder)`` gives a trained model with ``.predict(images)``, and everything
else is reached through a sweep file and the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from vitssl.evaluate import load


def __getattr__(name: str) -> Any:
    """``load`` on demand: a launcher imports this package on machines without torch."""
    if name == "load":
        from vitssl.evaluate import load

        return load
    raise AttributeError(f"module 'vitssl' has no attribute {name!r}")
