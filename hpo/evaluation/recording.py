"""What the evaluator of worker rank 0, or the rank itself where it evaluates, keeps of evaluations while they run."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from hpo.evaluation.system_samples import Sampler
from hpo.journal.curves import CurveFile, CurveWriter
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Curve, Job

_REMARK = "DIR/curves"
"""No name of a metric, as remarks have."""


class Recording:
    """Learning curves of one evaluation after the other, and samples of what they use if these are wanted. ``file``:
    None where nothing is kept; ``device``: the number by which torch knows this process's GPU."""

    def __init__(self, file: CurveFile | None, device: int = 0) -> None:
        self._writer = (
            None
            if file is None
            else CurveWriter(Path(file.path), file.every_s or 0.0, maximize=file.maximize)
        )
        self.curve: Curve | None = None if file is None or file.every_s is None else self._writer
        """For the trials."""
        self._sampler: Sampler | None = None
        if file is not None and self._writer is not None and file.system_s is not None:
            writer = self._writer
            self._sampler = Sampler(
                file.system_s, identity=lambda: writer.id, write=writer.write, device=device
            )
            self._sampler.start()

    def begin(self, job: Job) -> None:
        """The evaluation of ``job`` begins."""
        if self._writer is not None:
            self._writer.begin(job.id, resumed=job.resumed)

    def finish(self, outcome: TaskOutcome) -> TaskOutcome:
        """It has ended: its last report is written. ``outcome``, with a remark where reports could not be kept."""
        error = None if self._writer is None else self._writer.finish()
        if error is None:
            return outcome
        remark = f"learning curves have gaps, as they could not be written ({error}); evaluations go on"
        return replace(outcome, remarks={**outcome.remarks, _REMARK: remark})

    def close(self) -> None:
        """Nothing is kept any more."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._writer is not None:
            self._writer.close()
