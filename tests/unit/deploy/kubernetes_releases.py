"""The releases of Kubernetes that the files are checked for."""

VERSIONS = ("1.30", "1.37")
"""The oldest that the files are for, and the newest whose schemas we have."""
