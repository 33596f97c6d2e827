"""Streams: data sets that are read from their beginning and not by number, and that ranks share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import KW_ONLY, dataclass

from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainers.arguments import is_whole, make_plain
from trainers.randomness import derive, generators, seed_generators, set_generators


@dataclass(frozen=True, eq=False)
class Stream(IterableDataset[object]):
    """Data set that is read from its beginning, with its length.

    ``train`` also accepts a torch IterableDataset with a ``__len__`` directly.

    Each of n ranks reads all samples, and rank r uses samples r, r + n, r + 2n, …, so the data sets of all ranks must
    give the same samples in the same order. The global random generators are in the same state on all ranks for that.
    With ``sharded``, each rank uses all samples of its own data set, and reads no samples in vain.

    In training, each epoch starts at the beginning, after a call of the method ``set_epoch(epoch)`` if there is one.
    All ranks take the number of steps given by ``length``: a rank whose samples end earlier begins again, and further
    samples are left out. A run that is resumed from a checkpoint reads the samples up to its position without using
    them. An evaluation uses all samples once, and metrics get them rank by rank.

    Args:
        samples (iterable): pairs of inputs and target, from the first pair on in each ``iter``.
        length (int, from 1; default None): samples of an epoch of all ranks together, for training; None:
            ``len(samples)``, if it has a length and is not ``sharded``.
        sharded (bool; default False): whether ``samples`` are this rank's own.
    """

    samples: Iterable[object]
    _: KW_ONLY
    length: int | None = None
    sharded: bool = False

    def __post_init__(self) -> None:
        make_plain(self)
        if not hasattr(type(self.samples), "__iter__") or isinstance(self.samples, Iterator):
            how = "once only" if isinstance(self.samples, Iterator) else "by number only, if at all"
            raise ValueError(
                f"Stream: an object of type {type(self.samples).__name__} can be read {how}, and each epoch reads from "
                "the beginning. Give an object whose __iter__ starts at the beginning each time."
            )
        if isinstance(self.samples, DataLoader):
            raise ValueError(
                "Stream: a DataLoader gives batches, and samples are wanted. Give its data set, with batch_size=, "
                "collate= and loader_processes= of train."
            )
        if self.length is not None and not is_whole(self.length, 1):
            raise ValueError(
                f"Stream: length = {self.length!r}: must be a whole number of at least 1, or None. Correct it."
            )
        if not isinstance(self.sharded, bool):
            raise ValueError(f"Stream: sharded = {self.sharded!r}: must be True or False. Correct it.")

    def __iter__(self) -> Iterator[object]:
        return iter(self.samples)

    @property
    def known_length(self) -> int | None:
        """Samples of an epoch of all ranks together; None if they are not known."""
        if self.length is not None or self.sharded or not isinstance(self.samples, Sized):
            return self.length
        return len(self.samples)

    def __repr__(self) -> str:
        return f"a stream of {self.known_length}{', sharded' if self.sharded else ''}"


def gives_by_number(samples: object) -> bool:
    """Whether a sample can be read by its number."""
    own = getattr(type(samples), "__getitem__", None)
    # The method that Dataset defines, and IterableDataset inherits, only raises NotImplementedError.
    return own not in (None, Dataset.__getitem__) or any(
        hasattr(samples, name) for name in ("__getitems__", "read_batch")
    )


def stream_of(samples: object) -> Stream | None:
    """``samples`` as a stream; None for a data set that is read by number."""
    if isinstance(samples, Stream):
        return samples
    if isinstance(samples, IterableDataset) and not gives_by_number(samples):
        return Stream(samples)
    return None


class StreamReader:
    """Reads this rank's samples of a stream, epoch by epoch, in a single process.

    The global random generators are seeded for it from the run's ``seed``, equally on all ranks unless it is sharded,
    and left as the reading leaves them.
    """

    def __init__(self, stream: Stream, *, rank: int, ranks: int, seed: int) -> None:
        self._stream = stream
        self._rank, self._ranks = (0, 1) if stream.sharded else (rank, ranks)
        self._purpose: tuple[str | int, ...] = ("stream", rank) if stream.sharded else ("stream",)
        self._seed = seed
        self._epoch: int | None = None
        self._next = 0
        """Number of the next sample to read, of this rank's samples in the epoch."""
        self._iterator: Iterator[object] = iter(())
        self._ended = False
        self._generators = generators()

    def read(self, first: int, count: int, *, epoch: int | None, again: bool) -> list[object]:
        """Read ``count`` of this rank's samples from the ``first`` on, fewer at the end of the stream, which begins
        again with ``again``; ValueError if there is none at all. ``epoch`` is None for an evaluation.

        Samples before the first are read and dropped, unless they were read by the call before.
        """
        # A run that goes on within an epoch has to draw what the samples before drew.
        if first == 0 or epoch != self._epoch or (first != self._next and not self._ended):
            self._begin(epoch)
            self._read(first, again)
        else:
            set_generators(self._generators)
        found = self._read(count, again)
        self._generators = generators()
        return found

    def _begin(self, epoch: int | None) -> None:
        seed_generators(derive(self._seed, *self._purpose, -1 if epoch is None else epoch))
        self._epoch, self._next, self._ended = epoch, 0, False
        self._iterator = self._mine()

    def _mine(self) -> Iterator[object]:
        for index, sample in enumerate(self._stream):
            if index % self._ranks == self._rank:
                yield sample

    def _read(self, count: int, again: bool) -> list[object]:
        found: list[object] = []
        empty = False
        while len(found) < count and not self._ended:
            before = len(found)
            for sample in self._iterator:
                found.append(sample)
                if len(found) == count:
                    break
            else:
                if not again:
                    self._ended = True
                    break
                if empty and len(found) == before:
                    raise ValueError(
                        f"train_set: it ended before it gave this rank a sample, of {self._ranks} that share it. Bring "
                        "data, or use fewer ranks."
                    )
                empty = len(found) == before
                self._iterator = self._mine()
        self._next += len(found)
        return found
