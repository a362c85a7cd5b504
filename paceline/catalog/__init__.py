"""Models that Paceline knows by name: a table, and their download."""
