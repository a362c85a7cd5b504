"""Runs `paceline bench` as `python -m paceline.loadtest`."""

import sys

from paceline.cli import main

if __name__ == "__main__":
    sys.argv = ["paceline", "bench", *sys.argv[1:]]
    main()
