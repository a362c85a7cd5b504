"""GGUF files: read in place, or converted to a folder of another data type."""
