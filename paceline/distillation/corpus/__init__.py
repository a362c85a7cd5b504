"""What a draft learns from: conversations that the target writes with itself."""
