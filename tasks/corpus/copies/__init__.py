"""Copies among documents: sketches, who is compared with whom, who stays, repeated stretches, and
the documents of earlier corpora. Pure functions and tables; the stages are one room above."""
