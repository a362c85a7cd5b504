"""From logits to samples: what may be asked of a row, and what all backends share. No device of its own."""
