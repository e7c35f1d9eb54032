"""The README's picture and tables, from stored rows."""
