"""Tests that kills, races, restarts and faults lose no work and repeat none."""
