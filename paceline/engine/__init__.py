"""Models, the paged KV cache and the worker that runs them. torch, and no grpc."""
