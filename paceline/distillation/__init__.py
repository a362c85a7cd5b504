"""Distillation: makes a small draft for any target, from a few of its layers, trained on text that it writes itself."""
