"""The engine: models, the paged KV cache, and the worker that runs them. Uses torch, never grpc."""
