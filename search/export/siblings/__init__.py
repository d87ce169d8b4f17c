"""Products of a graph that share an operand: activations, as branches of a CUDA graph; keys and values, uncopied."""
