"""A GPUDevice: how it is found, what lives on it, and when that ends."""
