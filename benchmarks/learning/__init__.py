"""What agents learn, and how much training that takes."""
