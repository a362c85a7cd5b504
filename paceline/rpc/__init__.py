"""gRPC: servers, channels, messages, status codes. No torch, no engine."""
