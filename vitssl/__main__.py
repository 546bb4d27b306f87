"""``python -m vitssl`` is ``vitssl``."""

import sys

try:
    from vitssl.cli import main
except ModuleNotFoundError as error:
    what = f"this Python ({sys.executable}) has no {error.name}"
    print(f"error: {what}; activate vitssl's environment, or make it (README.md)", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main())
