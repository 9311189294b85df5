"""How a card is made: blocks, figures with their rows, masking, charts, and the two renderers."""
