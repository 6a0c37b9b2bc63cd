"""Checkpoints that leave for a Hugging Face repository or an S3-compatible store."""
