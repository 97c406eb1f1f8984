"""The second rung: the program that trains, run on the pretend GPU."""
