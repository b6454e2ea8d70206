"""Options, tables, progress and exit codes of the command line."""
