"""What agents learn, and from how much."""
