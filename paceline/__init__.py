"""Speculative decoding as services."""

__version__ = "0.1.0"
