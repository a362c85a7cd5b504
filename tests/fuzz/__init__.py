"""Messages that nobody should send, at every gRPC door: what they are, how they are sent, and what must hold."""
