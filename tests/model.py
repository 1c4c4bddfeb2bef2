"""What a task is, told as simply as it can be: the contract of the product, written a second time and without files.

A `Model` is one task: its steps in order, what is known of each, and a worker that is a place in a list. Every method
is one thing that happens to the task. tests/test_model.py plays the same script to it and to the product, and compares;
where the two differ, docs/protocol.md says which one is wrong.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PENDING, WORKING, DONE, FAILED, SKIPPED, UNCERTAIN = "pending", "working", "done", "failed", "skipped", "uncertain"
FINISHED = (DONE, SKIPPED)

#: The tag in task.md for each status.
TAG = {
    PENDING: "pending",
    WORKING: "working",
    DONE: "working done",
    FAILED: "failed",
    SKIPPED: "skipped",
    UNCERTAIN: "working",
}

#: The lines of steps in task.md: each with its tag.
Lines = list[tuple[str, str]]

UNKNOWN: Any = "unknown"  #: arguments that nobody can compare


@dataclass(frozen=True)
class Asked:
    """A step as the skill asks for it. With `uses`, the result of that step is its argument."""

    name: str
    n: int = 1
    effect: str = "idempotent"
    retries: int = 2
    uses: str | None = None
    check: bool = False

    @property
    def label(self) -> str:
        return self.name if self.n == 1 else f"{self.name} ({self.n})"


@dataclass(frozen=True)
class Question:
    text: str


@dataclass
class Step:
    status: str = PENDING
    result: Any = None
    args: Any = UNKNOWN
    effect: str = "idempotent"
    tries: int = 0
    spent: int = 0
    open: bool = False  #: a try runs, or was cut off and nobody has said so yet
    raised: bool = False
    by_hand: bool = False
    committed: int = 0

    def reopen(self) -> None:
        self.status, self.spent, self.open, self.raised = PENDING, 0, False, False
        self.by_hand, self.result = False, None

    def cut_off(self) -> None:
        self.open, self.spent = False, max(0, self.spent - 1)


@dataclass
class Model:
    skill: tuple[Asked | Question, ...]
    python: bool = True  #: a skill needs the results of its steps; a checklist does not
    death_limit: int = 3
    planned: list[str] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    attempts: int = 0
    deaths: int = 0
    leaves: int = 0  #: attempts in a row that ended without a word
    alive: bool = False
    supervised: bool = False
    stands: tuple[str, str] | None = None  #: ("in" | "check", label): where the living worker is
    place: int = 0  #: in the skill
    calls: int = 0  #: of `messages` in this run of the skill
    closed: bool = True
    how: str = "lost"  #: how an attempt that did not close has ended, as far as somebody saw it
    end: str | None = None
    ends: int = 0
    told: str | None = None
    paused: bool = False
    questions: dict[str, str | None] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    heard: dict[int, list[str]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)  #: given, and not yet carried out
    ever_asked: bool = False
    face: list[tuple[str, str]] | None = field(default_factory=list)  #: the lines of steps, as they lie
    shown: dict[str, str] = field(default_factory=dict)  #: as the worker wrote them last
    edited: bool = False
    messy: bool = False  #: somebody was killed while he wrote; the next holder of the lock puts it in order
    redone: int = 0
    seen_redone: int = 0
    clock: int = 0
    finished: int = -1  #: when its end was the last that was written down
    entered: Counter[str] = field(default_factory=Counter)
    said: list[tuple[str, ...]] = field(default_factory=list)  #: what the worker told the ledger, of this move
    may: list[Model] | None = field(default_factory=list)  #: how it may stand after a power cut; None: nobody asks
    faces: list[Lines | None] = field(default_factory=list)  #: what task.md may say then
    history: list[Model] | None = None  #: how it stood after each line of the journal, while somebody asks

    def __post_init__(self) -> None:
        self.may, self.faces = [self.moment()], [self.face]

    # -- what is known ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The word of `list`."""
        if self.end is not None:
            return self.end
        if self.face is None:
            return "damaged"
        if not self.attempts and not self.paused:
            return "queued"
        if not self.closed:
            return "working" if self.alive else "interrupted"
        return "paused" if self.paused else self.told or "interrupted"

    def lines(self) -> list[tuple[str, str]]:
        return [(label, TAG[self.steps[label].status]) for label in self.order]

    def tick(self, *, sync: bool = True) -> None:
        """A line was written into the journal; with `sync` it and all before it survive a power cut."""
        self.clock += 1
        if self.may is not None:
            self.may.append(self.moment())
            self.faces.append(self.lines())  # with some lines task.md is written, with others it is not
        self.passes()
        if sync:
            self.synced()

    def synced(self) -> None:
        if self.may is not None:
            self.may = [self.moment()]

    def shows(self, *, sync: bool = False) -> None:
        """task.md was written."""
        self.faces = [self.face] if sync else [*self.faces, self.face]

    def passes(self) -> None:
        """A moment has come at which somebody may be killed."""
        if self.history is not None:
            self.history.append(self.before())

    def before(self) -> Model:
        """How it stands, and may stand after a power cut."""
        moment = self.moment()
        moment.may, moment.faces = None if self.may is None else list(self.may), list(self.faces)
        return moment

    def moment(self) -> Model:
        """How it stands, and no more of it."""
        beside = self.may, self.faces, self.history
        self.may, self.faces, self.history = None, [], None
        try:
            return copy.deepcopy(self)
        finally:
            self.may, self.faces, self.history = beside

    # -- the worker ------------------------------------------------------------------------------------------------

    def live(self) -> None:
        self.attempts += 1
        self.alive, self.closed, self.told, self.how = True, False, None, "lost"
        self.tick()
        self.from_the_top()
        self.write_face()
        self.plan(self.planned)
        self.walk()

    def from_the_top(self) -> None:
        self.place, self.calls, self.seen_redone = 0, 0, self.redone

    def walk(self) -> None:
        """Go on until it stands in a step, waits for a person, or has ended."""
        while self.alive and self.stands is None:
            item = self.skill[self.place] if self.place < len(self.skill) else None
            if isinstance(item, Asked):
                self.hear()
            if not self.border():
                continue
            if item is None:
                self.end_well()
            elif isinstance(item, Question):
                self.ask(item.text)
            else:
                self.insist(item)
        if self.alive:
            self.write_face()

    def insist(self, asked: Asked) -> None:
        """On one step, until it stands in it, is through with it, or has ended: without a border in between."""
        while self.alive and self.stands is None and self.current() is asked:
            self.step(asked)

    def border(self) -> bool:
        """Between two steps: edits, then orders. Whether the skill goes on here."""
        self.merge()
        came = self.carry_out()
        if self.paused:
            self.rest()
            return False
        if self.redone != self.seen_redone or came & {"resolve", "retry"}:
            self.from_the_top()
            return False
        return True

    def hear(self) -> None:
        self.calls += 1
        texts = self.heard.get(self.calls, [])
        if not texts and not any(call > self.calls for call in self.heard) and self.unread:
            texts, self.unread = self.unread, []
            self.heard[self.calls] = texts
            self.tick()
        if texts:
            self.said.append(("heard", *texts))

    def ask(self, question: str) -> None:
        if self.questions.get(question) is not None:
            self.place += 1
            return
        if question not in self.questions:
            self.questions[question] = None
            self.tick()
        self.rest()

    def step(self, asked: Asked) -> None:
        args = (self.steps[asked.uses].result,) if asked.uses else ()
        step = self.steps.get(asked.label)
        if step is None:
            self.begin(asked, args)
        elif step.status == SKIPPED or (step.status == DONE and step.args in (UNKNOWN, args)):
            if step.status == DONE and step.by_hand and self.python and step.result is None:
                self.finish("conflict")
            else:
                self.place += 1
        elif step.status == DONE:
            self.asked_otherwise(step)
        elif step.status == FAILED:
            self.finish("failed")
        elif step.status == UNCERTAIN:
            self.rest()
        elif step.status == WORKING and step.tries and not step.raised and "once" in (asked.effect, step.effect):
            self.stands = ("check", asked.label) if asked.check else None
            if self.stands:
                self.said.append(("checking", asked.label))
            else:
                self.commit(asked.label, UNCERTAIN)
        elif step.spent > asked.retries:
            self.commit(asked.label, FAILED)
        else:
            self.begin(asked, args)

    def asked_otherwise(self, step: Step) -> None:
        """It is done with other arguments: by order of who had a step before it redone, or by nobody's."""
        if step.committed >= self.redone:
            self.finish("conflict")
            return
        label = next(label for label, other in self.steps.items() if other is step)
        self.unmark(label, "working" if step.effect == "once" else "redo")
        if step.effect == "once":
            self.commit(label, UNCERTAIN)
            return
        step.reopen()
        known = self.redone == self.seen_redone
        self.redone = self.clock + 1
        self.live_on()
        self.tick()
        if known:
            self.seen_redone = self.redone

    def unmark(self, label: str, tag: str) -> None:
        """task.md does not say any more that the step is finished, before the journal does not."""
        if self.face is not None and self.steps[label].status in FINISHED and not self.edited:
            ordered = {x: "redo" for x, shown in self.face if shown == "redo"}
            self.face = [(x, {**ordered, label: tag}.get(x, now)) for x, now in self.lines()]
            self.shows(sync=True)
            self.passes()

    def begin(self, asked: Asked, args: Any) -> None:
        before = [item.label for item in self.skill[: self.place] if isinstance(item, Asked)]
        step = self.step_of(asked.label, before[-1] if before else None)
        step.status, step.args, step.effect = WORKING, args, asked.effect
        step.tries, step.spent, step.open, step.raised = step.tries + 1, step.spent + 1, True, False
        self.tick(sync=asked.effect == "once")
        self.stands = ("in", asked.label)
        self.entered[asked.label] += 1
        self.said.append(("entered", asked.label, str(step.tries)))

    def step_of(self, label: str, after: str | None) -> Step:
        if label not in self.steps:
            self.steps[label] = Step()
            if after is not None and after in self.order:
                self.order.insert(self.order.index(after) + 1, label)
            else:
                self.order.append(label)
        return self.steps[label]

    def commit(self, label: str, status: str, result: Any = None, *, by_hand: bool = False) -> None:
        step = self.steps[label]
        if step.status == UNCERTAIN:
            self.told = None
        if step.status == FAILED and by_hand:
            self.live_on()
        step.status, step.result, step.open, step.by_hand = status, result, False, by_hand
        step.raised = status == FAILED
        if status == DONE:
            self.deaths = self.leaves = 0
        step.committed = self.clock + 1
        self.tick()

    def plan(self, labels: list[str]) -> None:
        for label in labels:
            if label not in self.steps:
                self.step_of(label, None)
                self.tick(sync=False)
        self.synced()

    # -- what its steps do, by order of the script ---------------------------------------------------------------

    def returns(self, value: Any) -> None:
        assert self.stands is not None
        self.commit(self.stands[1], DONE, value)
        self.stands = None
        self.place += 1
        self.walk()
        self.goes_on_supervised()

    def raises(self, *, not_done: bool = False) -> None:
        assert self.stands is not None
        label, self.stands = self.stands[1], None
        step, asked = self.steps[label], self.asked(label)
        if asked.effect != "once" or not_done:
            self.it_raised(label)
            if step.spent > asked.retries:
                self.commit(label, FAILED)
                self.merge()
        self.go_on(asked)

    def it_raised(self, label: str) -> None:
        step = self.steps[label]
        step.open, step.raised = False, True
        self.tick(sync=False)

    def go_on(self, asked: Asked) -> None:
        """With the same step, without a border before it."""
        self.insist(asked)
        self.walk()
        self.goes_on_supervised()

    def current(self) -> Asked | Question | None:
        return self.skill[self.place] if self.place < len(self.skill) else None

    def asked(self, label: str) -> Asked:
        return next(item for item in self.skill if isinstance(item, Asked) and item.label == label)

    def checked(self, said: Any) -> None:
        """The check answered: ("done", value), "not done" or None."""
        assert self.stands is not None
        label, self.stands = self.stands[1], None
        if said is None:
            self.commit(label, UNCERTAIN)
        elif said == "not done":
            self.it_raised(label)
        else:
            self.commit(label, DONE, said[1])
        self.go_on(self.asked(label))

    # -- how it ends -----------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """The attempt closes because a person has to decide."""
        self.write_face(always=self.face is None)
        self.shows(sync=True)
        self.close()
        self.told = self.waits_for()
        self.tick()

    def waits_for(self) -> str | None:
        if self.paused:
            return "paused"
        if any(step.status == UNCERTAIN for step in self.steps.values()):
            return "uncertain"
        return "question" if None in self.questions.values() else None

    def close(self) -> None:
        self.alive, self.closed, self.stands = False, True, None
        for step in self.steps.values():
            if step.open:
                step.cut_off()

    def end_well(self) -> None:
        if any(step.status == UNCERTAIN for step in self.steps.values()):
            self.rest()
            return
        for label, step in self.steps.items():
            if step.status not in (*FINISHED, FAILED):
                self.commit(label, SKIPPED)
        self.finish("completed")

    def finish(self, outcome: str) -> None:
        self.end, self.ends, self.paused = outcome, self.ends + 1, False
        self.tick()
        self.write_face(always=True)
        self.shows(sync=True)
        self.close()
        self.told = None
        self.finished = self.clock + 1
        self.tick()

    def live_on(self) -> None:
        self.deaths = self.leaves = 0
        self.end = self.told = None

    # -- deaths ----------------------------------------------------------------------------------------------------

    def dies(self, how: str = "crashed") -> None:
        self.alive, self.stands = False, None
        self.how = how if self.supervised else "lost"
        self.goes_on_supervised()

    def stops(self) -> None:
        """By SIGTERM: the attempt is closed, and what it was in is refunded."""
        self.close()
        self.tick()
        self.goes_on_supervised()

    def goes_on_supervised(self) -> None:
        if self.supervised and not self.alive:
            self.supervise()

    # -- the coordinator -------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Somebody has the lock, and takes the task to where it stands, waits, or ends."""
        self.supervised = True
        while not self.alive and self.supervised:
            self.take_over()
            if self.next() == "start":
                self.live()
            else:
                self.conclude()
                self.supervised = False

    def take_over(self) -> None:
        self.messy = False
        self.take_edits(None)
        self.bury()
        self.carry_out()
        self.write_face(always=True)

    def bury(self) -> None:
        if self.closed:
            return
        self.deaths += self.how != "incomplete" and self.end is None
        self.leaves += self.how == "incomplete" and self.end is None
        self.close()
        self.tick()

    def next(self) -> str:
        if self.end is not None:
            return "ended"
        if any(r["verb"] == "cancel" for r in self.requests):
            return "cancelled"
        if self.waits_for():
            return "waits"
        return "failed" if self.deaths >= self.death_limit or self.leaves > 1 else "start"

    def conclude(self) -> None:
        action = self.next()
        if action == "waits":
            if self.told != self.waits_for():
                self.told = self.waits_for()
                self.tick()
        elif action == "cancelled":
            self.requests = [r for r in self.requests if r["verb"] != "cancel"]
            self.finish("cancelled")
        elif action == "failed":
            open_ = [x for x in self.order if self.steps[x].status not in (*FINISHED, FAILED)]
            if open_:
                self.commit(open_[0], FAILED)
            self.finish("failed")
        self.write_face()

    def foreseen(self) -> Model:
        """How it will stand when somebody has taken it over."""
        other = self.moment()
        other.take_over()
        return other

    def recover(self) -> str:
        """What `recover` says that it does; and it does it."""
        if self.alive:
            return "alive"
        then = self.foreseen()
        action = {"start": "resumed"}.get(then.next(), then.next())
        if self.face is None:
            action = "damaged"
        if self.needs_nobody():
            return action
        self.supervise()
        return action

    def needs_nobody(self) -> bool:
        """Nothing is to be done: it has ended or waits, and there is no news for whoever would take it over."""
        if self.face is None or (self.end is None and not self.waits_for()):
            return False
        if self.end is None and self.told != self.waits_for():  # nobody was told, for its worker was killed before
            return False
        if self.end is not None and self.clock == self.finished and not self.ever_asked and not self.names_an_order():
            return True
        return not self.has_news()

    def names_an_order(self) -> bool:
        return any(tag in ("redo", "skipped") for _, tag in self.face or [])

    def has_news(self) -> bool:
        due = [r for r in self.requests if r["verb"] != "cancel" or self.end is not None]
        then = self.moment()
        then.clock = 0
        then.take_edits(None)
        return bool(due) or then.clock > 0 or (self.end is not None and not self.closed)

    def cancel(self) -> str:
        """Ends it for good: its worker is stopped first."""
        if self.alive or self.foreseen().end is None:
            self.asks({"verb": "cancel"})
        if self.alive:
            self.stops() if self.supervised else self.close()
        if not self.supervised:
            self.supervise()
        return str(self.end)

    # -- a person's orders -----------------------------------------------------------------------------------------

    def refuses(self, request: dict[str, Any]) -> bool:
        verb, step = request["verb"], self.steps.get(request.get("step", ""))
        failed = self.end in ("failed", "conflict")
        if verb in ("redo", "skip", "resolve") and step is None:
            return True
        rules: dict[str, Callable[[], bool]] = {
            "cancel": lambda: self.end is not None,
            "send": lambda: self.end is not None,
            "pause": lambda: self.end is not None or self.paused,
            "continue": lambda: self.end is not None or not self.paused,
            "retry": lambda: (
                not failed and not (self.end is None and any(s.status == FAILED for s in self.steps.values()))
            ),
            "answer": lambda: self.end is not None or None not in self.questions.values(),
            "redo": lambda: step is not None and step.status not in (*FINISHED, FAILED),
            "skip": lambda: (
                self.end in ("completed", "cancelled")
                or (step is not None and (step.status in FINISHED or (step.open and not self.closed)))
            ),
            "resolve": lambda: (
                self.end in ("completed", "cancelled")
                or (
                    (step is not None and step.status != UNCERTAIN)
                    and not (step is not None and step.status == DONE and self.end == "conflict")
                )
            ),
        }
        return rules[verb]()

    def ordered(self, request: dict[str, Any]) -> str:
        """`refused`, or `given` to who works on it, or `done` at once."""
        if self.refuses(request):
            return "refused"
        self.asks(request)
        if request["verb"] == "send":
            return "given"
        if self.alive:
            return "given"
        self.put_in_order()
        return "done"

    def asks(self, request: dict[str, Any]) -> None:
        """It is written down beside the journal, durably."""
        for stands in (self, *(self.may or [])):
            stands.ever_asked = True
            if request["verb"] == "send":
                stands.unread = [*stands.unread, request["text"]]
            else:
                stands.requests = [*stands.requests, request]

    def put_in_order(self) -> None:
        self.take_over()
        if self.next() == "start":
            self.supervise()
        else:
            self.conclude()

    def carry_out(self) -> set[str]:
        """All orders that are due, in their order. Which took effect."""
        came: set[str] = set()
        for request in list(self.requests):
            if request["verb"] == "cancel" and self.end is None:
                continue
            refused = self.refuses(request)
            if not refused and request["verb"] in ("redo", "resolve"):
                self.unmark(request["step"], "redo")
            self.requests.remove(request)
            if not refused:
                came.add(request["verb"])
                self.obey(request)
            if not refused and request["verb"] == "redo":
                self.redone = self.clock + 1
            self.tick()
        return came

    def obey(self, request: dict[str, Any]) -> None:
        step = self.steps.get(request.get("step", ""), Step())
        match request["verb"]:
            case "pause":
                self.paused = True
            case "continue":
                self.paused, self.told = False, None
            case "retry":
                for other in self.steps.values():
                    if other.status == FAILED:
                        other.reopen()
                self.live_on()
            case "redo":
                step.reopen()
                self.live_on()
            case "skip":
                if self.end is None or step.status == FAILED:
                    self.live_on()
                step.status, step.open = SKIPPED, False
            case "resolve":
                self.resolve(step, request)
            case "answer":
                question = next(q for q, answer in self.questions.items() if answer is None)
                self.questions[question], self.told = request["text"], None

    def resolve(self, step: Step, request: dict[str, Any]) -> None:
        if request["done"]:
            if request.get("result") is not None or step.status != DONE:
                step.result = request.get("result")
            step.status, step.by_hand, step.args, step.raised, step.open = DONE, False, UNKNOWN, False, False
            step.committed = self.clock + 1
        else:
            step.reopen()
        self.live_on()

    # -- what is done to its files ---------------------------------------------------------------------------------

    def face_is_deleted(self) -> None:
        self.face, self.edited = None, False
        self.shows(sync=True)

    def comes_up(self, face: Lines | None) -> None:
        """After a power cut: with what task.md says, all of it on the disk for certain."""
        self.alive = self.supervised = False
        self.stands, self.how, self.messy, self.said = None, "lost", True, []
        self.face = face
        self.may, self.faces = [self.moment()], [face]

    def is_copied(self) -> Model:
        """Under another id: its worker is none of the copy's."""
        other = self.moment()
        other.alive = other.supervised = False
        other.stands, other.how = None, "lost"
        other.may, other.faces = [other.moment()], [other.face]
        return other

    def journal_is_lost(self, deaths: int, spent: dict[str, int]) -> None:
        """It is made again from the face; what that does not tell exactly, how much was spent, is said by `deaths`
        and `spent`."""
        self.alive = self.supervised = False
        self.stands, self.closed, self.told, self.attempts = None, True, None, 0
        self.deaths, self.leaves = deaths, 0
        for label, step in self.steps.items():
            step.open, step.spent = False, spent[label]
            step.committed = 1

    # -- a person's edits ------------------------------------------------------------------------------------------

    def write_face(self, *, always: bool = False) -> None:
        """A mark has changed: task.md is written anew, and whatever was saved in it before is taken over."""
        if dict(self.lines()) == self.shown and not always:
            return
        if self.edited:
            self.take_edits(self.shown)
        self.face = self.lines()
        self.shown = dict(self.face)
        self.shows()

    def merge(self) -> None:
        if self.edited:
            self.take_edits(self.shown)
            self.write_face(always=True)

    def take_edits(self, before: dict[str, str] | None) -> None:
        """`before` is what the worker wrote last: only what differs from it counts. Without it, every tag does."""
        face, self.edited = self.face, False
        if face is None:
            return
        known, order = set(self.steps), list(self.order)
        labels = [label for label, _ in face]
        after: str | None = None
        for label, tag in face:
            if label not in self.steps:
                self.step_of(label, after)
                self.tick()
            if before is None or before.get(label) != tag:
                self.take_tag(label, tag)
            after = label
        all_there = set(labels) >= (known if before is None else set(before))
        if all_there and [x for x in labels if x in known] != [x for x in order if x in set(labels)]:
            self.order = labels + [label for label in self.order if label not in labels]
            self.tick()

    def take_tag(self, label: str, tag: str) -> None:
        step = self.steps[label]
        ordered = {"verb": "redo", "step": label}
        if tag == "redo" and ordered in self.requests and not self.refuses(ordered):
            pass  # it says what was ordered, and that is carried out later
        elif tag == "redo" and (step.status in FINISHED or step.status in (FAILED, UNCERTAIN)):
            step.reopen()
            self.live_on()
            self.redone = self.clock + 1
            self.tick()
        elif tag == "working done" and step.status not in (*FINISHED, FAILED):
            self.commit(label, DONE, by_hand=True)
        elif tag == "skipped" and step.status not in FINISHED:
            self.commit(label, SKIPPED, by_hand=True)
