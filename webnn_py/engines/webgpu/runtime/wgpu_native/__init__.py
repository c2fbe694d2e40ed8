"""wgpu-native: through wgpu-py's private names where they exist, else through its public calls."""
