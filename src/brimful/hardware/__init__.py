"""What a job runs on: GPUs, links, clusters, and the probe of this machine."""
