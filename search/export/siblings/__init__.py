"""Products of a graph that read the same activations, as branches of a CUDA graph."""
