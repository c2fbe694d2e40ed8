"""wgpu-native, by what is private in wgpu where that is there, else by wgpu's public calls."""
