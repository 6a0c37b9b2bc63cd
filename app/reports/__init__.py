"""The report on a run: one HTML file with its verdict, its figures, and the rollouts that they follow from."""
