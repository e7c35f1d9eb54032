"""What long commands of the lab tell while they run, and when a machine is idle."""

from __future__ import annotations

from collections.abc import Callable

Watch = Callable[[str, float], None]
"""Called with the name of what is running, and the fraction of all work that is done."""
IDLE = 0.5
"""With a higher load average other processes use the machine."""
