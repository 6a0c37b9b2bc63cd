"""What kills, races, restarts and faults leave intact."""
