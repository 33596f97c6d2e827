"""The public class of a campaign."""

from __future__ import annotations

from pathlib import Path

from hpo.arguments import checked_arguments
from hpo.campaign import rank_entry, start_ranks
from hpo.campaign.definition import CampaignDefinition
from hpo.campaign.live_panel import live_panel
from hpo.campaign.rank.rank import Rank
from hpo.cluster.mpi_startup import connect
from hpo.cluster.signals import Signals
from hpo.config import process
from hpo.config import reader as config
from hpo.errors import HpoError, UsageError
from hpo.islands.transport import Transport
from hpo.results.result import Result
from hpo.task.task import Task, TaskSource
from hpo.text import excerpt


class Campaign:
    """An asynchronous evolutionary search over a task's space, by islands of workers.

        result = hpo.Campaign(task, directory="runs/x", evaluations=200, timeout="10min").run()

    Keywords are the keys of a campaign file without its sections; ``evaluations``, ``deadline`` or ``rank_hours`` is
    required. A duration is a number of seconds or a string such as "90s", "30min", "1h30m" or "2d", at most ten years.

    Args:
        task (Task): what is searched and how a configuration is evaluated.
        directory (path): where the campaign lies; one that holds a campaign of the same task continues.
        evaluations (int, from 1; default None): the number of individuals over all launches.
        deadline (duration; default None): of each launch.
        rank_hours (float above 0; default None): hours of all evaluations over all launches, each times the ranks of
            its worker. What runs when they are used up is stopped as by a deadline.
        seed (int, from 0; default 0): of all random numbers. The same seed does not repeat an asynchronous run.
        keep (int, from 0; default 3): checkpoints of this many best individuals are kept.
        known (list; default ()): results to start from: paths of tables, campaigns and Optuna storages, tables such
            as {"source": "study.db", "study": "first"}, points such as {"params": {…}, "value": 0.9}, what
            ``hpo.known_points`` returned; results of another task as {"source": "runs/small", "as": "task"}.
        points (list; default ()): configurations to evaluate first, as dictionaries or paths of tables.
        schedule (list of dict; default ()): intervals that each evaluation trains in turn, each from the checkpoint of
            the interval before: the configuration that is evaluated first, and the changes in each later interval; or
            what ``Result.schedule`` returns.
        restarts (int, from 0; default 10): how often ``hpo run`` starts mpirun again after ranks died.
        islands (int, from 1; default 1): each has at least one worker.
        ranks_per_worker (int, from 1; default 1): ranks that train one individual together. The number of ranks must
            be a multiple of it. In ``island`` for that island alone: a multiple of the least.
        topology ("ring", "full" or matrix; default "ring"): where migrants go. Row i, column j of a matrix is how
            many individuals island i sends to island j at a time.
        island (list of dict; default ()): for island 0, 1, …: its own values of ``ranks_per_worker`` and of the search
            keywords below, except ``duplicates`` and ``reference``.
        phase (list of dict; default ()): one after the other, what is open until how many individuals have begun, such
            as {"until": 100, "only": {"depth": [1, 2]}}; afterwards the whole space.
        kind (str; default "default"): the search kind: "default", "surrogate", "evolution", "portfolio", "tpe", "gp",
            "optuna-cmaes", "genetic", "cmaes", "pso", "nelder-mead", "pbt", "grid" or "random".
        initial (str; default "random"): how the first individuals are drawn: "random", "sobol" or "latin-hypercube".
        grid_points (int, 2 to 100000; default 5): with "grid", values of each Float, and of an Int that has more.
        crossover (float, 0 to 1; default 0.7): probability of two parents ("evolution", "surrogate"); "genetic": share
            of the first parent's genes, as in Propulate.
        mutation (float, 0 to 1; default 0.4): probability of a point mutation ("genetic").
        random (float, 0 to 1; default 0.1): probability of a random individual; "surrogate": four times this share of
            the candidates among which it chooses is random.
        migration (float, 0 to 1; default 0.9): probability, after each evaluation, that individuals leave the island.
        exchange (str; default "migration"): "migration" moves individuals, "pollination" copies them.
        pool (int, from 2; default None): number of parents, at most 64; None: a fifth of the completed, at least 5
            ("genetic": 8; "pbt": 10 lineages).
        duplicates (bool; default False): whether a configuration may be evaluated more than once.
        reevaluate (float, 0 to 0.5; default 0.0): share of the individuals that repeat the best configurations.
        pruner (str; default "none"): early stopping by ``trial.report``: "none", "halving" or "median".
        min_steps (int, from 1; default 1): steps before the first comparison.
        reduction (int, from 2; default 3): "halving": the best 1/reduction continue, reduction times as far.
        patience (int, from 0; default 0): comparisons in a row that may fail before an individual is stopped.
        startup (int, from 1; default None): individuals to compare with before any is stopped; None: 1 for "halving",
            5 for "median".
        promote (bool; default True): "halving": individuals that fall behind are paused and may continue later.
        reported (str; default None): the objective that ``trial.report`` reports, where there are several.
        perturb (list of str; default None): "pbt": parameters that may change during training; None: all Float and
            Int.
        reference (dict; default {}): several objectives: a number by name; individuals worse than it in any objective
            rank last.
        only (dict; default {}): allowed choices by parameter, such as {"optimizer": ["SGD"]}.
        inherit (bool; default None): whether children find their parent's checkpoint at ``trial.parent_checkpoint``;
            None: where there are phases.
        isolation (str; default "warm"): "warm" evaluator processes persist, "fresh" processes serve one evaluation;
            "inline" evaluates inside the rank, for functions of microseconds, without time-out and protection.
        timeout (duration; default None): an evaluation that takes longer is killed; None: never.
        retries (int, from 0; default 1): how often an individual whose process died is evaluated again.
        grace (duration or 0; default 60.0): how long evaluations may save when the campaign stops.
        start_timeout (duration; default 300.0): how long evaluators may take to start; and ranks, to which a launch
            gives at least 120 s, and 0.05 s more for each.
        hang_timeout (duration, from 1 s; default 120.0): a rank that shows no life for so long is given up, and what it
            evaluates runs elsewhere.
        first_failures (int, from 1, or "off"; default 30): failures in a row, of all workers, that end a launch; a
            third where nothing has worked and all errors are the same. They are evaluated again later.
        checkpoints (bool; default None): whether the task saves when asked to; None: seen from what it did.
        interface (str; default None): network interface between the hosts of a worker; None: found.
        stop_value (float or dict of float; default None): the campaign ends once an individual has this value, or with
            several objectives these values by name.
        stop_gain (float above 0; default None): the campaign ends once ``stop_over`` more evaluations are expected to
            gain less in the only objective, or less than the noise that repeated evaluations show (Makarova et al.
            2022, arXiv:2104.08166).
        stop_over (int, 1 to 1000; default 50): see ``stop_gain``.
        log_curves (bool; default True): whether what trials report is kept, for ``Result.curves()``.
        log_every (duration or 0; default 1.0): of a trial's reports at most one in this time is kept, besides the first
            and the last; 0: each.
        log_sinks (list of str; default []): "tensorboard", "mlflow", "wandb", "trackio".
        log_directory (path; default None): where sinks write; None: ``logs`` in ``directory``.
        log_system (duration, from 1 s, or "off"; default None): how often use of processor, memory and GPU is kept.
        log_output (size in bytes or such as "64kB", the least, or "off"; default 10_000_000): how much is kept of what
            an evaluation prints on each rank: its beginning and its end.

    Raises:
        UsageError: a keyword is unknown or its value is not allowed; all such mistakes together.
    """

    @checked_arguments()
    def __init__(
        self, task: Task, *, directory: str | Path, join: bool | None = None, **keywords: object
    ) -> None:
        if not isinstance(task, Task):
            raise UsageError(
                f"Campaign takes an hpo.Task, not {type(task).__name__}: write hpo.Task(space, evaluate)"
            )
        self._describe(
            CampaignDefinition(config.from_keywords(directory=directory, **keywords), task, join=join)
        )

    @classmethod
    def from_file(cls, path: str | Path) -> Campaign:
        """The campaign that a campaign file describes.

        Args:
            path (path): of the TOML file.

        Raises:
            UsageError: the file cannot be read, or a key or value in it is not allowed.
            CampaignError: the task that it names cannot be imported.
        """
        campaign = cls.__new__(cls)
        campaign._describe(CampaignDefinition.from_file(path))
        return campaign

    def _describe(self, definition: CampaignDefinition) -> None:
        self._definition = definition
        self.task = definition.task
        self.settings = definition.settings
        self.exit_code = 0

    @property
    def source(self) -> TaskSource:
        """How evaluators get the task; raises CampaignError where they cannot."""
        return self._definition.source

    @property
    def identity(self) -> dict[str, object]:
        """Properties that must stay the same when the campaign goes on in its directory."""
        return self._definition.identity

    def check(self) -> None:
        """Check what can be checked before anything starts.

        Raises:
            UsageError: no configuration meets the constraints, or a kind of search does not suit the space.
            CampaignError: the directory holds another campaign, or an edited one, or cannot be used.
        """
        self._definition.check()

    @checked_arguments(**dict.fromkeys(("n_jobs", "n_workers", "num_workers", "workers"), "Write ranks=N."))
    def run(
        self,
        ranks: int | None = None,
        *,
        transport: Transport | None = None,
        signals: Signals | None = None,
    ) -> Result:
        """Run the campaign or go on with it; returns when the budget is used up, or the campaign was stopped or ran out
        of time (``Result.reason`` says which). Under mpirun or srun call it on every rank; it returns on every rank.
        SIGINT, SIGTERM and SIGUSR1 stop it in good order. A panel on a terminal or in a notebook shows how it goes.

        Args:
            ranks (int, from 1; default None): start as many by mpirun, on this host, from a script or a notebook; the
                task may be defined there. They do not run the script: they get the task as it is in memory, and
                import the modules that it uses. When this process dies, the campaign stops in good order. Under
                mpirun or srun, which have started the ranks: their number. None: those of mpirun or srun, else 1.
            transport (Transport; default None): the connection between the ranks, where the caller has made it; None:
                MPI under a launcher, else one rank.
            signals (Signals; default None): signal handlers that the caller has installed already; None: installs
                them.

        Raises:
            UsageError: ``ranks`` does not fit the layout, or the ranks that mpirun has started.
            HpoError: it could not begin: the layout, the directory, the task or MPI do not allow it.
            CampaignError: it could not go on: no worker starts evaluators, the first evaluations all failed (see
                ``hpo.islands.coordinator.health``), constraints refused all proposals for minutes, the storage did
                not work for minutes (then its ``exit_code`` is 75), or ``ranks`` were started and died again and
                again. What was recorded stays.
        """
        rank_entry.refuse_while_loading()
        launcher = process.launcher()
        if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
            raise UsageError(f"run(ranks={excerpt(ranks)}): must be a whole number from 1.")
        if transport is None and launcher.rank is None:
            if ranks is not None and ranks > 1:
                return self._run_started(ranks)
            with live_panel(self.settings.directory):
                return self._run(connect(), signals)
        size = launcher.size if transport is None else transport.size
        if ranks is not None and size not in (None, ranks):
            raise UsageError(
                f"run(ranks={ranks}): this launch has {size} ranks already. Leave ranks out under mpirun or srun, or "
                "start Python without them"
            )
        return self._run(transport or connect(), signals)

    def _run(self, transport: Transport, signals: Signals | None) -> Result:
        rank = Rank(self._definition, transport, signals)
        try:
            return rank.run()
        finally:
            self.exit_code = rank.exit_code

    def _run_started(self, ranks: int) -> Result:
        try:
            result, self.exit_code = start_ranks.run(self._definition, ranks)
        except HpoError as error:
            self.exit_code = error.exit_code
            raise
        return result
