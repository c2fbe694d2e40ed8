"""Code over webgpu.h, the C interface that wgpu-native and Dawn share."""
