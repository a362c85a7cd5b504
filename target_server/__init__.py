"""The target server: verifies tokens. Run it with `python -m target_server`."""
