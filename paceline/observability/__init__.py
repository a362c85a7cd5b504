"""What a service tells those who run it: metrics, traces and logs. No torch, no engine, no grpc."""
