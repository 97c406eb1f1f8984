"""What really happens: the rates of this machine, and the memory and time of a real run."""
