"""Running a Plan: data, checkpoints, metrics and the loop. Builds no model itself."""
