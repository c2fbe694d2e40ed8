"""Order of operations on contexts: timelines, shared memory, parked operations."""
