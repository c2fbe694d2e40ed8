"""Graph rewrites that run before the compiler forms kernels."""
