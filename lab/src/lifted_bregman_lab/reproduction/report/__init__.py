"""The page and the summary of a reproduction, from its stored rows."""
