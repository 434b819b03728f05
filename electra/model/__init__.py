"""Networks: token tensors in, hidden states and logits out."""
