"""Programs of others that are known by name: how their command line is read and launched.

A program runs as it is on the pretend GPU; what is known of it here is what a machine without its
data, checkpoints and cards cannot leave as it stands. One file per program.
"""
