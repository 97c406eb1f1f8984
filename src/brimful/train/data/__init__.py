"""From text on disk to batches of tokens at an exact, storable position."""
