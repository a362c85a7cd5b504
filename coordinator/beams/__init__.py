"""Beam search, plain and with drafts. Only `generations` knows it, by `search.beam_search`."""
