"""The load test of `paceline bench`. It talks to the coordinator through the Python client."""
