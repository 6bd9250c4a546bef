"""Results that leave this machine: as one file, merged with others', and as rows of a page.

See docs/results-format.md.
"""
