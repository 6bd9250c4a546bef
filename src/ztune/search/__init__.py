"""Which layouts to try next. Pure: from a study and an order of what was tried to a list of layouts."""
