"""What an environment is worth as a teacher, found out without a model: `learnloop check environment`."""
