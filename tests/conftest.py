"""Hypothesis draws the same examples every day; HYPOTHESIS_PROFILE=whole draws twice as many, as `make test-all` does.

HYPOTHESIS_PROFILE=explore draws new ones, =mutation few.

Ctrl-C works in every test process and in what it starts, also where the suite itself was started in the background of a
shell, which makes its children ignore the signal.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("everyday", derandomize=True, deadline=None, max_examples=10, database=None)
settings.register_profile("whole", derandomize=True, deadline=None, max_examples=20, database=None)
settings.register_profile("explore", deadline=None, max_examples=300)
settings.register_profile("mutation", derandomize=True, deadline=None, max_examples=5, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
