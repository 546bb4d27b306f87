"""The entry point of ``vitssl`` and ``python -m vitssl``."""

import sys


def main() -> int:
    try:
        from vitssl.cli import main as run
    except ModuleNotFoundError as error:
        lack = f"this Python ({sys.executable}) has no {error.name}"
        print(f"error: {lack}; activate vitssl's environment, or make it (README.md)", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
