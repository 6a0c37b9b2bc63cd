"""vLLM as the sampler: a server process of its own, which is told token ids and answers with token ids."""
