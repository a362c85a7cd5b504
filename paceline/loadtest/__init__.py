"""The load harness: `paceline bench`, or `python -m loadtest`. A client like any other: it speaks gRPC alone."""
