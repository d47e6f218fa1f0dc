"""Files: readers and writers, one module per format."""
