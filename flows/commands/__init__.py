"""The command line, one file a command. Each imports what it needs when it is called."""
