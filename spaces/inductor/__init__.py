"""Matrix products that TorchInductor compiles and tunes, as kernels that race beside those of a search."""
