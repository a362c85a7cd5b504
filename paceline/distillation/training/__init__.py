"""How a draft learns: batches, the loss and its gradient, the trainer."""
