"""A service in worlds that are known in advance: everything is real except for sampling and training."""
