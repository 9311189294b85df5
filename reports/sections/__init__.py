"""The parts of cards, each from the tables of its artifacts; built on ``reports.page``."""
