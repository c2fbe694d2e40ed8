"""Which values are stored, and which are computed by the kernels that read them."""
