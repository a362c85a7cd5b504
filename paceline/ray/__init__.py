"""Ray Serve as the engine that starts the services on one machine or many. Nothing else imports Ray."""
