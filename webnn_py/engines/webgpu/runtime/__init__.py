"""The runtime: a wgpu device, its queue, tensors and recordings."""
