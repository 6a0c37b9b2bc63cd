"""Pushes of checkpoints to a Hugging Face repository or an S3-compatible store."""
