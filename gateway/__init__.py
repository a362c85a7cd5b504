"""The gateway: OpenAI's HTTP in front, a coordinator's gRPC behind. Holds nothing but open requests."""
