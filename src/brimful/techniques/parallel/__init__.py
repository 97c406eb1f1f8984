"""Devices that part a step: which jobs that can be done with, and who has what. No torch."""
