"""Hypothesis draws the same examples every day; HYPOTHESIS_PROFILE=explore draws new ones, =mutation few."""

import os

from hypothesis import settings

settings.register_profile("everyday", derandomize=True, deadline=None, max_examples=20, database=None)
settings.register_profile("explore", deadline=None, max_examples=300)
settings.register_profile("mutation", derandomize=True, deadline=None, max_examples=5, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))
