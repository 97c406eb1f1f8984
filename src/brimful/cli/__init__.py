"""The command line: parse, build values, one library call, print. Nothing imports it."""
