"""What a load test shows: tables in the terminal, and a page with plots."""
