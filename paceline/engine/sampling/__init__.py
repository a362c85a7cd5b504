"""Sampling from logits: sample specs, samples, and what the sampler backends of all devices share."""
