"""Messages generated from proto/paceline/v1. Never edited: run `make proto`."""
