"""The paper's experiments, each reproducible by one command."""
