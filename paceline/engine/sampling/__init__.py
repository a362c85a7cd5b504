"""Sampling from logits: specs, samples, and what all devices share."""
