"""The gateway: an OpenAI-compatible HTTP API in front of coordinators. Its only state is open requests."""
