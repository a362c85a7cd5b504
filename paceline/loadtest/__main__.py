"""`python -m paceline.loadtest`: the same as `paceline bench`."""

import sys

from paceline.cli import main

if __name__ == "__main__":
    sys.argv = ["paceline", "bench", *sys.argv[1:]]
    main()
