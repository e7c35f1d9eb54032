"""Who holds the other samples of a batch: nobody here, other processes in a data-parallel run."""

from __future__ import annotations

from torch import Tensor


class Peers:
    """Those who hold the other samples of a batch.  Here nobody does, and everything is the identity.

    The processes of a data-parallel run have the same parameters, and each has a contiguous part of every batch.
    Whatever is summed over samples goes through these methods, and comes back as the same bits to all; what follows
    from such numbers is then the same everywhere, step sizes and decisions too.  A part may be empty.

    Every method but `own`, `samples` and `ends` is a message in which all take part.
    """

    count: int = 1
    """The number of processes."""
    rank: int = 0
    """Which of them this is, from 0; parts are in the order of ranks."""
    fault: int | None = None
    """The number of the first message to which this process gave NaN or infinity."""

    def divide(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """One's own rows of a batch, of which all have the whole: the beginning of its work.

        The tensors (samples, ...) are of one length.  Parts differ by at most one sample, and are views that must not
        be changed in place: `gather` gives the whole back without a message.
        """
        return rows

    def own(self, rows: Tensor) -> Tensor:
        """One's own rows of any tensor with a row for each sample of the batch."""
        return rows

    def samples(self, own: int) -> int:
        """The samples of the batch, from one's own number of them."""
        return own

    def ends(self, own: int) -> tuple[int, ...]:
        """Where the part of each process ends, counted in samples of the batch."""
        return (own,)

    def gather(self, rows: Tensor, each: int = 1, keep: bool = False) -> Tensor:
        """The rows of all, in the order of the batch, from one's own.

        each  the rows of one sample
        keep  says that `rows` will not be changed in place: while they live, gathering them again takes no message
        """
        return rows

    def light(self, rows: Tensor) -> bool:
        """Whether gathering these rows costs less than sums that are sent a few times."""
        return True

    def mean(self, *means: Tensor) -> None:
        """Makes means over one's own samples those over the batch, in place; those of an empty part are not read."""

    def total(self, *sums: Tensor) -> None:
        """Makes sums over one's own samples those over the batch, in place."""

    def mean_of(self, *means: float) -> tuple[float, ...]:
        """`mean` for numbers."""
        return means

    def total_of(self, *sums: float) -> tuple[float, ...]:
        """`total` for numbers."""
        return sums

    def norms_of(self, *norms: float) -> tuple[float, ...]:
        """The norms over all rows of the batch, from those over one's own."""
        return norms
