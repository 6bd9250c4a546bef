"""Looks at many hosts at once over ssh: what they have and do, and what has drifted from a recommendation."""
