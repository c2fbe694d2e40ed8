"""The specification as data, and the script that extracts it."""
