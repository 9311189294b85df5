"""Models under audit: our own checkpoints and Hugging Face folders, behind one interface."""
