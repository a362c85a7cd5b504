"""Links to the model servers, and a generation's caches there."""
