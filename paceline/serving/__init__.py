"""What the draft and the target server share: settings, the Session stream, the way up and down."""
