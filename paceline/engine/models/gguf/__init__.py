"""GGUF files, memory-mapped and read in place."""
