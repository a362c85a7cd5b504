"""Products with quantized weights: the bits that a GGUF file has, arranged for the processor's dot products."""
