"""Memory: arrays that users give, what overlaps, which buffers values share."""
