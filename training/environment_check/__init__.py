"""Checks without a model how well an environment can teach an agent: `learnloop check environment`."""
