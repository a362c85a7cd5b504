"""One engine per process, in its own environment, speaking `protocol`."""
