"""Messages that nobody should send, to every gRPC service: what they are, how they are sent, and what must hold."""
