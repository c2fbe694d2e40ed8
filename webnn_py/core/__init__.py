"""Facts that every layer uses: data types, errors, shapes, messages, conversions, threads."""
