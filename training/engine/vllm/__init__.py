"""vLLM as the sampler: a separate server process that takes and returns token ids."""
