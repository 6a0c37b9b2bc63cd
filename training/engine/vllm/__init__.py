"""vLLM as the sampler: a server process of its own, which is given token ids and answers with token ids."""
