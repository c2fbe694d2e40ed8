"""What users call: contexts, builders, graphs, tensors and the three modes."""
