"""The draft server: proposes tokens. Run it with `python -m draft_server`."""
