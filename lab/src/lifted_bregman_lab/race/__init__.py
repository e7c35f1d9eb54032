"""The race: lifted training against other optimisers on the same problems, from the same weights, by the clock."""
