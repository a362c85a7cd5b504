"""What draft and target server share: settings, the Session stream, startup and shutdown."""
