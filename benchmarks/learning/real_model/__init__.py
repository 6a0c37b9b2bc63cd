"""The benchmark of what a real base model learns; its command is in `__main__`."""
