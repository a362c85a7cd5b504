"""The engine: models, the paged KV cache, and the worker that runs them. It uses torch, never grpc."""
