"""Model weights and their shapes, for every device."""
