"""WGSL: expressions, types that devices may lack, and places in tensors."""
