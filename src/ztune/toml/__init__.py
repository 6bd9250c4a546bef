"""TOML files: where a key stands in one, and what is wrong with one as a sentence."""
