"""What a database does to its file system: seen live, or read from the output of other tools."""
