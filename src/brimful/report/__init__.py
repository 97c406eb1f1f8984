"""What people look at: tables in the terminal and one self-contained page per run."""
