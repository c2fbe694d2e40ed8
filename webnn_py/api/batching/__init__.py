"""Dynamic batching: awaited computes joined into runs along an open dimension."""
