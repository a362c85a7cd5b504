"""Paceline against transformers, llama.cpp and vLLM: the same prompts, weights and threads, in one run."""
