"""Training of denoisers: recipes, patches, the loop, and the card that goes with the weights."""
