"""Read files, data sets and installed documentation into records; this package knows no stage."""
