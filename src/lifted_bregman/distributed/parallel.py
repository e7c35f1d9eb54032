"""`Parallel`: the degrees of data and layer parallelism, timeout, restarts and interface of a run."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass, fields
from typing import Any

from lifted_bregman._text import number_or_text
from lifted_bregman.errors import SettingError


@dataclass(frozen=True)
class Parallel:
    """Splits a run over data · layer processes; the results are those of one process, except with `AsynchronousPIAG`.

    Each process of a layer-parallel run holds contiguous layers, and all hold about the same cost.

    data       processes that share the samples of each batch, at least 1
    layer      processes that share the layers, at least 1
    timeout    seconds without an answer after which a process counts as lost, > 0; must exceed the time of a callback
    restarts   restarts of all processes after a loss, at least 0; torchrun and SLURM restart by their own rules
    interface  the network interface for messages, such as "eth0"; by default loopback for processes started here, and
      torch's choice for those of torchrun or SLURM

    Example:
        >>> parallel = lb.Parallel(data=2, layer=2)
        >>> parallel.size, str(parallel)
        (4, 'data=2,layer=2')
    """

    data: int = 1
    layer: int = 1
    timeout: float = 60.0
    restarts: int = 3
    interface: str | None = None

    def __post_init__(self) -> None:
        for name, least in {"data": 1, "layer": 1, "restarts": 0}.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise SettingError(f"{name} of parallel is {value!r}; it must be a whole number of at least {least}.")
        if type(self.timeout) not in (int, float) or not 0.0 < self.timeout < math.inf:
            raise SettingError(f"timeout of parallel is {self.timeout!r}; it must be a number of seconds above 0.")
        if self.interface is not None and not (isinstance(self.interface, str) and self.interface):
            raise SettingError(f"interface of parallel is {self.interface!r}; it must be a name such as 'eth0'.")

    @classmethod
    def parse(cls, text: str) -> Parallel:
        """Reads text such as "data=2,layer=2", as on the command line."""
        known = {field.name: field for field in fields(cls)}
        given: dict[str, Any] = {}
        for part in text.split(","):
            name, equals, value = (word.strip() for word in part.partition("="))
            if name not in known or not equals or not value:
                raise SettingError(
                    f"parallel is '{text}'; write it as data=2 or data=2,layer=2, with any of {', '.join(known)}."
                )
            if name in given:
                raise SettingError(f"parallel is '{text}', which names {name} twice: name it once.")
            given[name] = number_or_text(value) if name != "interface" else value
        return cls(**given)

    def __str__(self) -> str:
        """Text that `parse` reads: `data`, and every field that differs from its default."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = {name: v for name, v in values.items() if name == "data" or v != getattr(type(self), name)}
        return ",".join(f"{name}={v:g}" if name == "timeout" else f"{name}={v}" for name, v in shown.items())

    @property
    def size(self) -> int:
        """The number of processes, data · layer."""
        return self.data * self.layer

    def require_world(self, size: int) -> None:
        """Raises SettingError unless data · layer is `size`, the number of processes of the world."""
        if size != self.size:
            raise SettingError(
                f"parallel asks for data={self.data} times layer={self.layer}, {self.size} processes in all, and there "
                f"are {size}: start {self.size}, or change the degrees."
            )

    def require_interface(self) -> None:
        """Raises SettingError unless this machine has the network interface `interface`; None is always valid."""
        known = [name for _, name in socket.if_nameindex()]
        if self.interface is not None and self.interface not in known:
            raise SettingError(
                f"interface of parallel is '{self.interface}', which this machine does not have; it has "
                f"{', '.join(known)}."
            )

    def require_work(self, batch: int, layers: int) -> None:
        """Raises SettingError unless data <= batch and layer <= layers: each rank needs a sample and a layer.

        batch   samples of a batch
        layers  layers of the network
        """
        if self.data > batch:
            raise SettingError(
                f"parallel shares a batch among data={self.data} processes and a batch has {batch} samples: take "
                "larger batches, or a smaller degree."
            )
        if self.layer > layers:
            raise SettingError(
                f"parallel shares the layers among layer={self.layer} processes and the network has {layers}: take a "
                "smaller degree."
            )
