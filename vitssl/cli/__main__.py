import sys

from vitssl.cli import main

if __name__ == "__main__":
    sys.exit(main())
