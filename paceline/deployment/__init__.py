"""All three services on this machine: their flags, and their processes. What `paceline up`, the demo and benchmarks start."""
