"""The compiled loops of the classifier, twins of the one loop."""
