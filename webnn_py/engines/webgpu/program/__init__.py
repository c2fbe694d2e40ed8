"""What a compiled program is: data that the compiler makes, files hold and the runtime runs."""
