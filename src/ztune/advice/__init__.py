"""From evidence to a recommendation, with the reasons; and from a recommendation to commands."""
