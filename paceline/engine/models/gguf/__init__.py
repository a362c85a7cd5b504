"""GGUF files, memory-mapped."""
