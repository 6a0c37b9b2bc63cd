"""Data for learning: versions of inboxes, scenarios and demonstrations, prepared here or uploaded."""
