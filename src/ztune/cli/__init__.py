"""One module per command: it parses, calls and prints."""
