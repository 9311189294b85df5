"""Methods: ways of asking and of judging that several probes share."""
