"""The paged KV cache's bookkeeping: blocks, prefixes, sequences. The backend holds the keys and values."""
