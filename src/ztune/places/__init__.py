"""Places where trials run. Each only knows how to get a trial there and the result back."""
