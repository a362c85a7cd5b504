"""The gateway: an OpenAI-compatible HTTP API."""
