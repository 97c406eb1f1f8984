"""This process and its children: versions and imports of libraries, and what they print."""
