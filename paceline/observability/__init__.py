"""Metrics, traces and logs of all services. Imports neither torch nor grpc."""
