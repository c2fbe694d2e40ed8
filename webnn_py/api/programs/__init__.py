"""Programs: graphs and kernels as one piece of work, recorded, run, saved and loaded."""
