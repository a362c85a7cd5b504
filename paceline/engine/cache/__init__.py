"""The paged KV cache's bookkeeping: blocks, prefixes, sequences. The keys and values themselves are the backend's."""
