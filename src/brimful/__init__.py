"""Brimful: predict, simulate and measure the memory of training, and run the plan that fits.

The public names load on first use, so that ``import brimful`` stays free of torch and numpy.
"""

__version__ = "0.1.0"
