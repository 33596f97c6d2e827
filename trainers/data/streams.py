"""Data sets that are read from their beginning, not by number, and how ranks share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import KW_ONLY, dataclass

from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainers.arguments import is_whole, make_plain
from trainers.randomness import derive, generators, generators_kept, seed_generators, set_generators


@dataclass(frozen=True, eq=False)
class Stream(IterableDataset[object]):
    """A data set that is read from its beginning, with its length. ``train`` takes a torch IterableDataset that has a
    ``__len__`` without it, too.

    Of n ranks rank r keeps samples r, r + n, r + 2n, …: each reads all, and their data sets have to give the same
    samples in the same order. The global generators are in the same state on all ranks for that. With ``sharded`` each
    rank takes all that its own data set gives, and nothing is read in vain.

    In training each epoch begins anew, after ``set_epoch(epoch)`` where there is such a method, and all ranks take the
    steps that ``length`` makes: a rank whose samples end before begins again, and what lies beyond is left out. A run
    that goes on from a checkpoint reads up to where it was, without using it. An evaluation takes all samples once,
    and metrics get them rank by rank.

    Args:
        samples (iterable): of pairs of inputs and target, from the first on in each ``iter``.
        length (int, from 1; default None): samples of an epoch, of all ranks together; for training. None:
            ``len(samples)``, if it has that and is not ``sharded``.
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
                "the beginning. Give an object whose __iter__ begins anew."
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
        """Samples of an epoch, of all ranks together; None if they were not said."""
        if self.length is not None or self.sharded or not isinstance(self.samples, Sized):
            return self.length
        return len(self.samples)

    def __repr__(self) -> str:
        return f"a stream of {self.known_length}{', sharded' if self.sharded else ''}"


def gives_by_number(samples: object) -> bool:
    """Whether ``samples`` can be asked for one of them."""
    own = getattr(type(samples), "__getitem__", None)
    # Dataset's raises NotImplementedError, and an IterableDataset has none but that.
    return own not in (None, Dataset.__getitem__) or any(
        hasattr(samples, name) for name in ("__getitems__", "read_batch")
    )


def stream_of(samples: object) -> Stream | None:
    """``samples`` as a stream if they are to be read as one."""
    if isinstance(samples, Stream):
        return samples
    if isinstance(samples, IterableDataset) and not gives_by_number(samples):
        return Stream(samples)
    return None


class StreamReader:
    """Reads this rank's samples of a stream, epoch by epoch, in one process.

    Args:
        stream (Stream): the data set.
        rank (int): this one.
        ranks (int): their number.
        seed (int): of the run: reading draws from global generators that are seeded with it, and the same on all ranks
            unless the stream is sharded.
    """

    def __init__(self, stream: Stream, *, rank: int, ranks: int, seed: int) -> None:
        self._stream = stream
        self._rank, self._ranks = (0, 1) if stream.sharded else (rank, ranks)
        self._purpose: tuple[str | int, ...] = ("stream", rank) if stream.sharded else ("stream",)
        self._seed = seed
        self._epoch: int | None = None
        self._next = 0
        """Of this rank's samples in this epoch the number of the one to be read."""
        self._iterator: Iterator[object] = iter(())
        self._ended = False
        self._generators = generators()

    def read(self, first: int, count: int, *, epoch: int | None, again: bool) -> list[object]:
        """That number of this rank's samples, from the ``first`` of this ``epoch`` on.

        Fewer if the stream ends; with ``again`` it begins anew then. What lies before ``first`` is read, and thrown
        away, if it was not read just before. ValueError if there are none for this rank at all.
        """
        with generators_kept():
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
