"""The command line: each command reads files, calls a verb and saves its result."""
