"""GGUF files, read in place: mapped into memory, and never copied as a whole."""
