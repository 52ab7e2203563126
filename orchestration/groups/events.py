"""Every event between worker, pool, sweep and study, typed; and the plain data of events in the journal.

A worker posts a `WorkerPost` to the pool. The pool makes a `TrialEvent` of it, which goes through Tune to the sweep and
into the journal. Events become plain data at two borders only: in the journal, and in the text that Tune reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from scalestudy.experiments.spec.addresses import parent_and_name
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.gpu_state import GpuState
from scalestudy.training.pulse import Activity
from scalestudy.training.records import EpochRecord

if TYPE_CHECKING:
    from scalestudy.experiments.plan.plan import TrialPlan


Status = Literal["finished", "at_target", "stopped", "diverged", "failed", "out_of_memory"]
"""How a trial can end: after its last epoch, at its target, by ASHA, or broken off."""
TrainingStatus = Literal["finished", "at_target", "stopped", "diverged"]
"""How a training without a fault can end."""
WITH_MODEL = ("finished", "at_target")
"""Statuses of trials that ended by themselves. The best one's model is kept."""
FaultKind = Literal["exception", "out_of_memory", "collective", "storage", "device_lost"]
"""The kinds of a rank's fault: the user's exception, too little memory, a collective that lost a peer, a store that
fails, a GPU that fails."""
Beginning = Literal["started", "resumed", "extended"]
"""How a run of a study begins: anew, after an interruption, or with more trials than before."""
STUDY_STOPPED = "stopped"
"""Kind of the error of a trial that ended because the study did."""


# --- facts that events carry --------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class TrialError:
    """Why a trial or an attempt ended."""

    kind: str
    message: str
    rank: int | None = None  # the rank that had the error; None: no single one
    traceback: str = ""  # may be empty

    def to_plain(self) -> dict[str, Any]:
        """Return plain data. `TrialError(**plain)` gives an equal error."""
        plain = {"kind": self.kind, "message": self.message, "rank": self.rank}
        return {**plain, "traceback": self.traceback} if self.traceback else plain


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A lost attempt, as a trial's record keeps it."""

    attempt: int
    kind: str
    message: str
    rank: int | None = None

    @classmethod
    def of(cls, attempt: int, error: TrialError) -> Failure:
        """Return the attempt that this error ended."""
        return cls(attempt=attempt, kind=error.kind, message=error.message, rank=error.rank)


@dataclass(frozen=True, kw_only=True)
class Member:
    """What a rank reports about itself when it is ready."""

    rank: int
    node: str
    host: str
    pid: int
    cores: int  # of its host
    device: str  # `cpu`, or `cuda:0`
    threads: int
    backend: str | None = None  # of its process group, `gloo` or `nccl`; None: the rank is alone
    gpus: tuple[str, ...] = ()  # Ray's names, on its node, for the GPUs that it was given


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """Where a rank of a trial runs, as trials.jsonl keeps it."""

    rank: int
    node: str
    device: str
    threads: int
    gpus: tuple[str, ...] = ()  # as in `Member`

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> WorkerPlace:
        """Return the place behind `to_plain`'s data."""
        return cls(**{**plain, "gpus": tuple(plain.get("gpus", ()))})

    def to_plain(self) -> dict[str, Any]:
        """Return plain data. `gpus` is left out if it is empty, as on a CPU."""
        plain = {"rank": self.rank, "node": self.node, "device": self.device, "threads": self.threads}
        return {**plain, "gpus": list(self.gpus)} if self.gpus else plain


@dataclass(frozen=True, kw_only=True)
class World:
    """The workers that train a trial."""

    device: str | None = None  # `cpu` or `cuda`; None: the trial has had no workers
    nodes: int = 0
    backend: str | None = None
    """Backend of their process group, `gloo` or `nccl`; None: there is one worker."""
    accelerator: str | None = None
    """The type of the GPUs that Ray has given them; None: it gave none, or their nodes don't say."""
    workers: tuple[WorkerPlace, ...] = ()

    @classmethod
    def of(cls, members: Sequence[Member], accelerator: str = "") -> World:
        """Return the world of a group's members. accelerator: of their nodes; "": unknown."""
        kinds = {member.device.split(":")[0] for member in members}
        workers = sorted(members, key=lambda member: member.rank)
        return cls(
            device="+".join(sorted(kinds)),
            nodes=len({member.node for member in members}),
            backend=workers[0].backend,
            accelerator=accelerator or None,
            workers=tuple(
                WorkerPlace(rank=each.rank, node=each.node, device=each.device, threads=each.threads, gpus=each.gpus)
                for each in workers
            ),
        )

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> World:
        """Return the world behind `to_plain`'s data."""
        return cls(
            device=plain["device"],
            nodes=plain["nodes"],
            backend=plain.get("backend"),
            accelerator=plain.get("accelerator"),
            workers=tuple(WorkerPlace.from_plain(worker) for worker in plain["workers"]),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return plain data in the key order of trials.jsonl. Backend and accelerator are left out if they are None."""
        known = {"backend": self.backend, "accelerator": self.accelerator}
        told = {name: value for name, value in known.items() if value}
        workers = [worker.to_plain() for worker in self.workers]
        return {"device": self.device, "nodes": self.nodes, **told, "workers": workers}


@dataclass(frozen=True, kw_only=True)
class KillCount:
    """How many processes the kernel has killed because memory ran out."""

    node: str
    file: str  # where the node's system counts them
    kills: int


# --- what a trial goes through ------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Suggested:
    """A search has made a trial."""

    trial: TrialPlan
    point: int | None  # the number of its point, from 1; None: no search counts it


@dataclass(frozen=True, kw_only=True)
class Running:
    """A group has taken the trial."""

    attempt: int
    world: World = World()


@dataclass(frozen=True, kw_only=True)
class LoopCheckpoint:
    """The last checkpoint that a user's loop has reported."""

    address: str  # path or URI of its folder
    epoch: int  # the last epoch recorded before it or with it; 0: none
    seconds: float = 0.0  # that the loop ran after that epoch's record
    steps: int = 0  # that it made by `scalestudy.step` after that record
    samples: float = 0.0  # of these steps

    @property
    def run(self) -> str:
        """The address of the folder of its Ray Train run, that of one group."""
        return parent_and_name(self.address)[0]


@dataclass(frozen=True, kw_only=True)
class EpochDone:
    """An epoch is trained and evaluated."""

    record: EpochRecord
    flags: tuple[str, ...] = ()  # of the trial, as far as the pool knows them
    checkpoint: LoopCheckpoint | None = None  # of a user's loop, if it has reported one so far


@dataclass(frozen=True, kw_only=True)
class Retried:
    """An attempt is lost, and another follows."""

    attempt: int
    error: TrialError


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial's last event: everything that its line of trials.jsonl says beyond the plan.

    Times in seconds; started_at and ended_at as `utc_text`.
    """

    status: Status
    attempts: int
    started_at: str
    ended_at: str
    wall_seconds: float
    train_seconds: float
    startup_seconds: float | None
    world: World = World()
    flags: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)  # what training picked by itself, plain data
    gpus: tuple[GpuState, ...] = ()  # of the ranks that had one, in the last attempt
    fingerprint: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Digests of the user's code and data that it was trained with, by their names (`Fingerprint.digests`).

    One that went on after an edit has several of a name.
    """
    failures: tuple[Failure, ...] = ()
    epochs: tuple[EpochRecord, ...] = ()
    error: TrialError | None = None

    @property
    def is_final(self) -> bool:
        """Whether no later run takes the trial up, as one does if the trial ended because the study did."""
        return self.error is None or self.error.kind != STUDY_STOPPED

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Ended:
        """Return the end in a line of trials.jsonl. Other keys, such as the plan's, are left out."""
        return cls(
            status=facts["status"],
            attempts=facts["attempts"],
            started_at=facts["started_at"],
            ended_at=facts["ended_at"],
            wall_seconds=facts["wall_seconds"],
            train_seconds=facts["train_seconds"],
            startup_seconds=facts["startup_seconds"],
            world=World.from_plain(facts["world"]),
            flags=tuple(facts["flags"]),
            details=dict(facts.get("details") or {}),
            gpus=tuple(GpuState.from_plain(gpu) for gpu in facts.get("gpus") or ()),
            fingerprint=dict(facts.get("fingerprint") or {}),
            failures=tuple(Failure(**failure) for failure in facts.get("failures") or ()),
            epochs=tuple(EpochRecord.from_dict(epoch) for epoch in facts["epochs"]),
            error=None if facts["error"] is None else TrialError(**facts["error"]),
        )

    def to_facts(self) -> dict[str, Any]:
        """Return what a line of trials.jsonl says beyond the plan, in the order of its keys."""
        return {
            "status": self.status,
            "attempts": self.attempts,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "wall_seconds": self.wall_seconds,
            "train_seconds": self.train_seconds,
            "startup_seconds": self.startup_seconds,
            "world": self.world.to_plain(),
            "flags": list(self.flags),
            **({"details": dict(self.details)} if self.details else {}),
            **({"gpus": [gpu.to_plain() for gpu in self.gpus]} if self.gpus else {}),
            **(
                {"fingerprint": {name: list(each) for name, each in self.fingerprint.items()}}
                if self.fingerprint
                else {}
            ),
            **({"failures": [asdict(failure) for failure in self.failures]} if self.failures else {}),
            "epochs": [epoch.to_dict() for epoch in self.epochs],
            "error": None if self.error is None else self.error.to_plain(),
        }

    def to_line(self, trial: TrialPlan) -> dict[str, Any]:
        """Return the trial's line of trials.jsonl."""
        return line_of(trial, self.to_facts())


def line_of(trial: TrialPlan, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's line of trials.jsonl: what identifies it, then what `Ended.to_facts` says."""
    look = {"look": trial.look.to_dict()} if trial.look else {}
    return {"trial_id": trial.trial_id, "kind": trial.kind, "params": dict(trial.params), **look, **facts}


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A trial that can't report its end: the recorder makes an `Ended` from what it knows."""

    status: Status = "failed"
    error: TrialError | None = None
    last_epoch: int | None = None  # the last one that counts; None: all count


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """A failed trial runs again from its beginning, because a user asked for it.

    Its epochs and its end no longer count. Its attempts go on counting, and its budgets of lost ones begin anew.
    """


TrialEvent = Suggested | Running | EpochDone | Retried | Ended | Reopened | Lost
"""The events of a trial that reach the study."""
JournalEvent = Suggested | Running | EpochDone | Retried | Ended | Reopened
"""The events of a trial that the journal holds; never `Lost`."""


def to_plain(event: JournalEvent) -> dict[str, Any]:
    """Return an event as plain data for JSON, in the journal's format.

    The journal adds the plan to an end (`to_line`).
    """
    match event:
        case Suggested():
            return {"type": "suggested", "trial": event.trial.to_dict(), "point": event.point}
        case Running():
            return {"type": "running", "attempt": event.attempt, "world": event.world.to_plain()}
        case EpochDone():
            more: dict[str, Any] = {"flags": list(event.flags)} if event.flags else {}
            more |= {"checkpoint": asdict(event.checkpoint)} if event.checkpoint else {}
            return {"type": "epoch", "epoch": event.record.to_dict(), **more}
        case Retried():
            return {"type": "retry", "attempt": event.attempt, "error": event.error.to_plain()}
        case Ended():
            return {"type": "ended", **event.to_facts()}
        case Reopened():
            return {"type": "reopened"}


class UnknownEventError(ValueError):
    """An event of a type that this version does not know."""


def from_plain(plain: Mapping[str, Any]) -> JournalEvent:
    """Return the event behind `to_plain`'s data. Raises UnknownEventError for a type that this version does not know.

    It leaves out keys that it does not know. In an end those are the plan's, which the study has.
    """
    match plain["type"]:
        case "suggested":
            from scalestudy.experiments.plan.plan import TrialPlan

            return Suggested(trial=TrialPlan.from_dict(plain["trial"]), point=plain["point"])
        case "running":
            return Running(attempt=plain["attempt"], world=World.from_plain(plain["world"]))
        case "epoch":
            record = EpochRecord.from_dict(plain["epoch"])
            checkpoint = LoopCheckpoint(**plain["checkpoint"]) if "checkpoint" in plain else None
            return EpochDone(record=record, flags=tuple(plain.get("flags") or ()), checkpoint=checkpoint)
        case "retry":
            return Retried(attempt=plain["attempt"], error=TrialError(**plain["error"]))
        case "ended":
            return Ended.from_facts(plain)
        case "reopened":
            return Reopened()
    raise UnknownEventError(
        f"event type {plain['type']!r}: no trial has such an event; a newer scalestudy may have written it"
    )


# --- what the study itself goes through ---------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a run of a study comes from. None: unknown."""

    user: str | None = None  # who started it
    source: str | None = None  # the spec as the user named it
    commit: str | None = None  # of git, in the folder of the spec
    job: str | None = None  # the id that `ray job submit` gave it; None: it is no job

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Origin:
        """Return the origin behind `to_plain`'s data; keys of a newer version are left out."""
        return cls(**{key: plain.get(key) for key in ("user", "source", "commit", "job")})

    def to_plain(self) -> dict[str, str]:
        """Return what is known, as plain data."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class StudyAnswer:
    """What a study found, at its end."""

    cell: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the recommended cell; empty: there is none."""
    figures: Mapping[str, float] = field(default_factory=dict)  # by their names in MLflow

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> StudyAnswer:
        """Return the answer behind `to_plain`'s data."""
        return cls(cell=dict(plain["cell"]), figures=dict(plain["figures"]))

    def to_plain(self) -> dict[str, Any]:
        """Return plain data."""
        return {"cell": dict(self.cell), "figures": dict(self.figures)}


@dataclass(frozen=True, kw_only=True)
class StudyBegan:
    """A run of the study begins."""

    how: Beginning
    origin: Origin | None = None  # None: unknown
    fingerprint: Fingerprint | None = None  # of the user's code and data; None: all is built in, or unknown


@dataclass(frozen=True, kw_only=True)
class EngineLost:
    """The actor with the pool has died. Every open trial lost its workers; a new engine goes on."""

    message: str


@dataclass(frozen=True, kw_only=True)
class FreshWorkers:
    """From now on every trial gets fresh workers."""

    why: str


@dataclass(frozen=True, kw_only=True)
class StudyStopped:
    """A run ended before all trials had."""

    open: tuple[str, ...]  # trials that have begun and not ended
    wall_seconds: float  # of all runs
    answer: StudyAnswer | None = None  # so far; None: as in `StudyFinished`


@dataclass(frozen=True, kw_only=True)
class StudyFinished:
    """All trials have ended."""

    best: str | None  # the trial with the best model; None: none kept one
    wall_seconds: float  # of all runs
    answer: StudyAnswer | None = None
    """None: there was no summary to take it from."""


StudyEvent = StudyBegan | EngineLost | FreshWorkers | StudyStopped | StudyFinished
"""The events of the study itself that the journal holds."""


def study_event_to_plain(event: StudyEvent) -> dict[str, Any]:
    """Return an event of the study as plain data for JSON, in the journal's format."""
    match event:
        case StudyBegan():
            told: dict[str, Origin | Fingerprint | None] = {"origin": event.origin, "fingerprint": event.fingerprint}
            known = {name: each.to_plain() for name, each in told.items() if each is not None}
            return {"type": "study", "state": event.how, **known}
        case EngineLost():
            return {"type": "study", "state": "engine_lost", "message": event.message}
        case FreshWorkers():
            return {"type": "study", "state": "fresh_workers", "why": event.why}
        case StudyStopped():
            plain = {"type": "study", "state": "stopped", "open": list(event.open), "wall_seconds": event.wall_seconds}
        case StudyFinished():
            plain = {"type": "study", "state": "finished", "best": event.best, "wall_seconds": event.wall_seconds}
    return plain if event.answer is None else {**plain, "answer": event.answer.to_plain()}


def study_event_from_plain(plain: Mapping[str, Any]) -> StudyEvent:
    """Return the event behind `study_event_to_plain`'s data.

    Raises UnknownEventError for a state that it does not know.
    """
    match plain["state"]:
        case "started" | "resumed" | "extended" as how:
            origin = Origin.from_plain(plain["origin"]) if "origin" in plain else None
            fingerprint = Fingerprint.from_plain(plain["fingerprint"]) if "fingerprint" in plain else None
            return StudyBegan(how=how, origin=origin, fingerprint=fingerprint)
        case "engine_lost":
            return EngineLost(message=plain["message"])
        case "fresh_workers":
            return FreshWorkers(why=plain["why"])
        case "stopped":
            return StudyStopped(open=tuple(plain["open"]), wall_seconds=plain["wall_seconds"], answer=_answer_in(plain))
        case "finished":
            return StudyFinished(best=plain["best"], wall_seconds=plain["wall_seconds"], answer=_answer_in(plain))
    raise UnknownEventError(
        f"state {plain['state']!r} of a study: this version does not know it; a newer scalestudy may have written it"
    )


def _answer_in(plain: Mapping[str, Any]) -> StudyAnswer | None:
    return StudyAnswer.from_plain(plain["answer"]) if "answer" in plain else None


# --- what a rank reports on its trial ----------- -------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Begun:
    """The rank has taken the trial."""

    kernel_kills: KillCount  # processes that its node's kernel has killed so far


@dataclass(frozen=True, kw_only=True)
class Started:
    """Rank 0 is about to take the first step; of a user's loop, to call it."""

    resumed: bool = False  # from a checkpoint
    code: Mapping[str, str] = field(default_factory=dict)  # of a user's loop, as in `TrainingEnded`


@dataclass(frozen=True, kw_only=True)
class Beat:
    """The rank's process lives, and does this. It is sent every two seconds."""

    activity: Activity | Literal["ended"]  # `ended`: the rank has left the trial, and beats no more
    stage: int  # number of the stretch of this activity, from 1
    seconds: float  # in it
    count: int  # steps made, or batches evaluated, in it; 0 for an activity without a counter


@dataclass(frozen=True, kw_only=True)
class TrainingEnded:
    """Rank 0's last report on a training that no fault has broken."""

    status: TrainingStatus
    score: float | None  # the last epoch's metric, turned so that more is better; None where it is not finite
    lost_seconds: float  # training time of the epoch that was broken off
    message: str | None  # where and how it diverged
    details: Mapping[str, Any] = field(default_factory=dict)  # as in `Ended`
    gpus: tuple[GpuState, ...] = ()  # as in `Ended`
    code: Mapping[str, str] = field(default_factory=dict)  # digests of the user's modules that its process has loaded


@dataclass(frozen=True, kw_only=True)
class Left:
    """The ranks have left the trial with a checkpoint, as the pool asked."""

    message: str  # where


@dataclass(frozen=True, kw_only=True)
class GivenBack:
    """The ranks have not trained the trial, since fresh workers would train it differently."""

    why: str


@dataclass(frozen=True, kw_only=True)
class RankFailed:
    """An exception on the rank."""

    kind: FaultKind
    message: str
    log: str = ""
    """The file with its traceback. "": there is no file, or no traceback."""
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class LoopReport:
    """A `ray.train.report` of a user's loop that every rank has made. Ray Train's controller sends it."""

    seconds: float  # since the first line of the loop in this attempt, on rank 0
    keys: tuple[str, ...]  # of rank 0's metrics
    values: Mapping[str, float]  # rank 0's metrics by the names that the study gives them
    seen: float | None = None  # examples so far, of all ranks, as rank 0 reports them
    steps: int = 0  # calls of `scalestudy.step` since the report before, on the rank that made most
    samples: float = 0.0  # examples that these calls tell, of all ranks
    timed_samples: float = 0.0  # of these, those of the calls that are timed
    timed_seconds: float = 0.0  # from call to call, on the slowest rank
    resumed: bool = False  # whether the loop has taken the checkpoint of an earlier attempt
    checkpoint: str | None = None  # address of the folder that it came with


@dataclass(frozen=True, kw_only=True)
class LoopEnded:
    """A user's loop has returned on every rank, and all its reports have arrived. Ray Train's controller sends it."""


WorkerPost = Begun | Started | Beat | EpochDone | TrainingEnded | Left | GivenBack | RankFailed | LoopReport | LoopEnded
"""What a rank, or its controller, reports to the pool. Its `EpochDone` has no flags."""
