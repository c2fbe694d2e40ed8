"""Host memory: arrays of users, copies, overlap, files of weights, buffer planning."""
