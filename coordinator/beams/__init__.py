"""Beam search, plain and with drafts."""
