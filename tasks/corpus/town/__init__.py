"""An invented town: documents composed by a seeded grammar, and the truth of each of them."""
