"""What attentions share: the contract of a mixer, shells that several fill, and operations on tensors."""
