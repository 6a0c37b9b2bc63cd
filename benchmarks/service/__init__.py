"""What the service costs, and what it withstands."""
