"""Links to the model servers, and caches there."""
