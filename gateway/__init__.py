"""An OpenAI-compatible HTTP API for coordinators."""
