"""The engine: models, the paged KV cache, and the worker. Uses torch, never grpc."""
