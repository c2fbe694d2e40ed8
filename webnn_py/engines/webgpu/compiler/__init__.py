"""The compiler: a graph in, kernels and a plan of their buffers out; needs no wgpu."""
