"""Makes the tiny base model that the engine ships. Only developers need it."""
