"""What releases decide, and how often wrongly."""
