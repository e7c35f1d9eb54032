"""Races of the first format, one JSON file each: read, and shown as they were.  New races are rows."""
