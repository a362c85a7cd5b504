"""Model weights and their shapes."""
