"""The costs of the service and its resistance to load and attacks."""
