"""Models with transformers' own modules: the engine gives them its cache, attention, products and experts."""
