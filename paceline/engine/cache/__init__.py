"""Bookkeeping of the paged KV cache: blocks, prefixes, sequences. The backend stores keys and values."""
