"""Machine-readable forms of the cards, all made from the same answers and figures."""
