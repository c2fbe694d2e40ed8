"""Compiled programs: data that the compiler produces, files store and the runtime executes."""
