"""What people and skills do wrong, at the command line: each is told what and what to do, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_door import CANNOT_CREATE, DATA, NO_INPUT, USAGE, Cli

from orchestrator import Coordinator, files
from orchestrator.cli import logs
from orchestrator.core import stepfile
from orchestrator.errors import Damaged
from orchestrator.store import Paths, look, read_spec


@pytest.fixture
def cli(tmp_path: Path, root: Path) -> Cli:
    return Cli(tmp_path, root)


@pytest.fixture
def skill(tmp_path: Path) -> Callable[[str], str]:
    def write(body: str) -> str:
        text = "import os, sys, anyio\nasync def skill(task, **args):\n"
        (tmp_path / "mine.py").write_text(text + textwrap.indent(textwrap.dedent(body), "    "), "utf-8")
        return "mine.py:skill"

    return write


# -- what to run ---------------------------------------------------------------------------------------------------

SKILLS = """
def plain(task): ...
async def fine(task): ...
value = 3
"""


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ("no_such_module:skill", ["no_such_module", "there is no such module"]),
        ("skills:missing", ["'missing'", "it has: fine"]),
        ("gone.py:skill", ["gone.py", "no such file"]),
        ("no-such-skill", ["'no-such-skill'", "there is to run: ", "repo_report"]),
        ("gone.yaml", ["gone.yaml", "no such file"]),
        ("skills.py:plain", ["skills.py:plain is not async", "async def"]),
        ("broken.py:skill", ["broken.py:2:"]),
        ("binary.py:skill", ["binary.py"]),
        (":skill", ["skill"]),
        ("skills.py:", ["skills.py"]),
        ("", [""]),
        (".:skill", ["."]),
        ("..skills:fine", ["..skills"]),
    ],
)
def test_a_worker_that_is_none_is_refused_before_a_task_is_made(cli, tmp_path, worker, words):
    (tmp_path / "skills.py").write_text(SKILLS)
    (tmp_path / "broken.py").write_text("async def skill(task):\n    return (\n")
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0\0\xff\xfe")
    cli("spawn", worker).refuses(NO_INPUT, *words)
    assert cli.tasks() == []


def test_a_name_that_only_the_worker_can_refuse_fails_the_task_and_says_why(cli, tmp_path):
    (tmp_path / "skills.py").write_text(SKILLS)
    cli("run", "skills.py:value").tells_failure("not an async function", "async def skill(task, ...)")


def test_a_steps_file_with_a_typing_error_is_told_by_file_line_and_key(cli, tmp_path):
    (tmp_path / "job.yaml").write_text("name: job\nsteps:\n  - name: one\n    run: [sh]\n    retires: 3\n")
    cli("run", "job.yaml").refuses(DATA, "job.yaml:5: ", "retires", "retries")
    assert cli.tasks() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("stepps: []\n", ["job.yaml:1: ", "'stepps'", "steps"]),
        ("name: job\nsteps: one\n", ["job.yaml:2: ", "steps"]),
        ("steps:\n- name: one\n  run: [sh]\n  retries: many\n", ["job.yaml:4: ", "step 'one': retries"]),
        ("steps:\n- name: one\n  run: [sh]\n  timeout: -1\n", ["job.yaml:2: ", "timeout"]),
        ("steps:\n- run: [sh]\n", ["job.yaml:2: ", "name"]),
        ("steps:\n- name: one\n", ["job.yaml:2: ", "`run`"]),
        ("steps:\n- just text\n", ["job.yaml:2: ", "steps.0"]),
        ("steps:\n- name: one\n  run: [sh]\n  outputs: [../x]\n", ["job.yaml:4: ", "'../x'"]),
        ("steps:\n- name: one\n  run: [sh]\nlimits:\n  death: 1\n", ["job.yaml:5: ", "death"]),
        ("steps: [\n", ["job.yaml:2: ", "not YAML"]),
        ("steps:\n\t- one\n", ["job.yaml:2: ", "not YAML"]),
        ("- 1\n- 2\n", ["job.yaml:1: ", "`steps`"]),
        ("? [1, 2]\n: 3\nsteps: []\n", ["job.yaml:"]),
        ("", ["job.yaml:1: ", "`steps`"]),
        ("a: &a [*a]\n", ["job.yaml:1: "]),
        ("steps: !!python/object/apply:os.system [true]\n", ["job.yaml:1: ", "not YAML"]),
        (b"\x7fELF\0\xff\xfe", ["job.yaml", "UTF-8"]),
        (b"steps:\0\n", ["job.yaml:1: ", "not YAML"]),
    ],
)
def test_a_steps_file_that_cannot_be_meant_is_refused_with_its_line(tmp_path, monkeypatch, content, words):
    from orchestrator.compose import resolve
    from orchestrator.errors import BadSpec

    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadSpec) as refused:
        resolve("job.yaml")
    assert refused.value.exit_code == DATA
    assert len(refused.value.what.splitlines()) == len(refused.value.hint.splitlines()) == 1
    assert not [word for word in words if word not in refused.value.what + refused.value.hint], str(refused.value)


@pytest.mark.parametrize("schema", ["2", "'2'", "2.0"])
def test_a_spec_that_a_newer_version_has_written_is_refused_and_left_as_it_was(cli, skill, root, schema):
    task_id = json.loads(cli("run", skill("return 1"), "--json").out)["task"]
    spec = Path(root, task_id, ".task", "spec.yaml")
    newer = re.sub("schema: 1", f"schema: {schema}\nmood: hopeful", spec.read_text())
    spec.write_text(newer)
    with pytest.raises(Damaged) as refused:
        read_spec(Paths(str(root / task_id)))
    assert "schema is 2" in refused.value.what
    assert refused.value.hint == "install a newer version of orchestrator"
    cli("recover")
    assert spec.read_text() == newer


# -- the words of a call -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "x:y", "--arg", "path"), USAGE, ["'path'", "--arg path=/some/dir"]),
        (("run", "x:y", "--arg", "=1"), USAGE, ["'=1'"]),
        (("run",), USAGE, ["WORKER", "--help"]),
        (("run", "x:y", "--deaths", "0"), USAGE, ["--deaths"]),
        (("frobnicate",), USAGE, ["frobnicate", "--help"]),
        (("list", "--frobnicate"), USAGE, ["--frobnicate", "--help"]),
        (("show", "task-20260101-000000-001"), NO_INPUT, ["task-20260101-000000-001", "list"]),
        (("wait", ".."), NO_INPUT, ["'..'"]),
        (("cancel", "task-2026"), NO_INPUT, ["task-2026"]),
        (("recover", "task-20260101-000000-001"), NO_INPUT, ["task-20260101-000000-001"]),
        (("logs", ""), NO_INPUT, ["''"]),
        (("lint", "nowhere.md"), NO_INPUT, ["nowhere.md"]),
        (("lint", "."), NO_INPUT, ["./task.md"]),
    ],
)
def test_a_call_with_wrong_words_is_told_which_and_how_to_say_it(cli, words, code, said):
    cli(*words).refuses(code, *said)
    assert cli.tasks() == []


def test_the_beginning_of_an_id_never_stands_for_the_task(cli, skill):
    assert cli("run", skill("return 1")).code == 0
    whole = cli.task().name
    for verb in ("show", "wait", "cancel", "recover", "result", "logs"):
        cli(verb, whole[:-1]).refuses(NO_INPUT, whole[:-1])
    assert cli("show", whole).code == 0


def test_a_root_that_is_a_file_is_named_as_such_and_left_as_it_was(cli, skill, tmp_path):
    place = tmp_path / "a file"
    place.write_text("precious")
    worker = skill("return 1")
    cli("run", worker, root=place).refuses(CANNOT_CREATE, str(place), "--root")
    cli("spawn", worker, root=place / "below").refuses(CANNOT_CREATE, str(place), "--root")
    cli("list", root=place).refuses(CANNOT_CREATE, str(place), "--root")
    cli("recover", root=place).refuses(CANNOT_CREATE, str(place), "--root")
    assert place.read_text() == "precious"


# fault 66
def test_a_root_with_blanks_quotes_and_foreign_letters_is_a_root_like_any_other(cli, skill, tmp_path):
    cli.root = tmp_path / "mes tâches" / "工作 'x' \"y\" $HOME 😀"
    said = cli("run", skill('return await task.step("ein Schritt", lambda: 1)'), "--name", "größte — 任务")
    assert said.code == 0, said
    assert "größte — 任务" in said.out
    assert cli("result", cli.task().name).out == "1\n"
    assert cli.task().name in cli("list").out


#: What a terminal obeys: it would ring, write over a line, turn its words round, or take one for a line of ours.
_OBEYED = "\x07\x1b]0;owned\x08\r\n✔ all is well\x85\u2028\u202egpj.exe\u2066"


def test_no_name_is_obeyed_by_the_terminal_that_shows_it(cli, skill):
    worker = skill(
        f"await task.step({_OBEYED!r}, print)\nawait task.step('then' + {_OBEYED!r}, lambda: 1 / 0, retries=0)"
    )
    ran = cli("run", worker, "--name", _OBEYED)
    assert ran.code == 1
    task = cli.task()
    face = str(task / "task.md")
    said = [ran, *(cli(verb, task.name) for verb in ("show", "watch", "wait", "explain", "retro", "recover"))]
    said += [cli("lint", face), cli("list"), cli("doctor"), cli("gc", "--older", "0", "--failed")]
    for one in said:
        assert "Traceback" not in one.err
        shown = (one.out + one.err).splitlines(keepends=True)
        assert not [line for line in shown if not line.removesuffix("\n").isprintable()]
        assert not [line for line in shown if line.startswith("✔ all is well")]


def test_a_name_that_is_a_book_is_told_in_a_line_and_its_task_can_be_removed(cli, skill):
    ran = cli("run", skill("return 1"), "--name", "N" * 100_000)
    assert ran.code == 0
    task = cli.task().name
    for one in (ran, cli("wait", task), cli("show", task), cli("list"), cli("gc", "--older", "0")):
        assert max(map(len, (one.out + one.err).splitlines())) < 1000
        assert "NNN…" in one.out
    assert cli("gc", "--older", "0", "--yes").code == 0
    assert cli.tasks() == []


async def test_what_a_program_raises_beside_its_tasks_reaches_it_as_it_was_raised(root):
    reason = KeyError("why")
    with pytest.raises(ValueError, match="mine") as raised:
        async with Coordinator(root):
            raise ValueError("mine") from reason
    assert raised.value.__cause__ is reason


# -- skills that misbehave -----------------------------------------------------------------------------------------


#: An error that cannot even say what it is.
_MUTE = """
class Mute(Exception):
    def __str__(self):
        return str(1 / 0)
    __repr__ = __str__
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('raise RuntimeError("no more ink")', ["RuntimeError: no more ink", "orchestrator logs task-"]),
        ('await task.step("w", lambda: {1, 2})', ["step 'w' failed", "cannot be stored as JSON"]),
        ('await task.step("one", lambda: 1)\nreturn {1, 2}', ["1 of 1 step done", "own result", "JSON"]),
        ("return float('nan')", ["own result", "JSON"]),
        ("return 10 ** 5000", ["own result", "JSON"]),
        ("import no_such_thing", ["no_such_thing", "orchestrator logs task-"]),
        ("os._exit(0)", ["without an end"]),
        ("sys.exit(0)", ["without an end"]),
        ("async with anyio.create_task_group() as group:\n    group.start_soon(sys.exit)", ["without an end"]),
        (_MUTE + "raise Mute", ["Mute", "it cannot be told", "ZeroDivisionError"]),
        (_MUTE + "def w():\n    raise Mute\nawait task.step('w', w)", ["step 'w' failed: Mute: (it cannot be told"]),
        ('raise Exception("\\ud800 \\x00 \\x1b[31m two\\nlines")', ["lines"]),
    ],
)
def test_a_skill_that_goes_wrong_fails_its_task_and_says_how(cli, skill, body, words):
    said = cli("run", skill(body))
    said.tells_failure(*words)
    assert "## Status: failed" in (cli.task() / "task.md").read_text("utf-8")
    assert cli("wait", cli.task().name).out == said.out


def test_a_hundred_megabytes_of_output_cost_neither_the_disk_nor_the_task_nor_its_limits(cli, skill):
    body = """
        from orchestrator import StepFailed
        def shout():
            print("the very first line")
            for _ in range(1000):
                os.write(1, b"x" * 99_999 + b"\\n")
            print("the very last line")
        async def hang():
            await anyio.sleep_forever()
        await task.step("shout", shout)
        try:
            await task.step("hang", hang, timeout=0.05, retries=0)
        except StepFailed:
            return "limits hold"
    """
    assert cli("run", skill(body)).code == 0
    log = cli.task() / ".task" / "logs" / "1.out"
    assert log.stat().st_size < 2 * 1024 * 1024 + 1000
    text = log.read_text()
    assert text.startswith("the very first line\n")
    assert text.endswith("the very last line\n")
    assert " bytes were left out here " in text
    assert json.loads(cli("result", cli.task().name).out) == "limits hold"


def test_logs_are_shown_once_though_they_grow_and_a_fifo_in_their_place_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path, shown = tmp_path / "1.out", dict[str, int]()
    path.write_bytes(b"one\n")
    real = os.fstat

    def grows_meanwhile(fd: int) -> os.stat_result:
        found = real(fd)
        if not shown:
            path.write_bytes(b"one\ntwo\n")
        return found

    monkeypatch.setattr(logs.os, "fstat", grows_meanwhile)
    for _ in range(2):
        logs._print_new(str(path), shown)
    path.unlink()
    logs._print_new(str(path), shown)
    os.mkfifo(path)
    logs._print_new(str(path), shown)
    assert capsysbinary.readouterr().out == b"one\ntwo\n"


def test_a_skill_that_forks_and_dies_leaves_no_process_and_no_lock(cli, skill, ledger, find_workers):
    body = f"""
        import time
        if os.fork() == 0:
            os.setsid()
            open({str(ledger.path)!r}, "a").write(f"child {{os.getpid()}}\\n")
            time.sleep(300)
        while not os.path.exists({str(ledger.path)!r}):
            pass
        os._exit(3)
    """
    cli("run", skill(body), "--deaths", "1").tells_failure("died in a row")
    child = int(ledger.lines()[0].removeprefix("child "))
    assert not os.path.exists(f"/proc/{child}")
    assert find_workers(os.environ["ORCHESTRATOR_TEST_SESSION"]) == []
    lock = files.lock_directory(str(cli.task()))
    assert lock is not None
    os.close(lock)


@pytest.mark.parametrize("close", ["os.close(1); os.close(2)", "sys.stdout.close(); sys.stderr.close()"])
def test_a_skill_that_closes_its_output_loses_its_output_and_nothing_else(cli, skill, close):
    body = f"""
        {close}
        await task.step("one", lambda: 1)
        return await task.step("two", lambda: 2)
    """
    said = cli("run", skill(body))
    assert said.code == 0, said
    assert (cli.task() / "results" / "result.json").read_text() == "2\n"


NAMES = [
    *("a/b", "a\\b", "../../evil", "/etc/passwd", "...", ".hidden", "two\nlines", "tab\tin", "🎉 done", "漢字" * 150),
    *("task", "Task-Retro", "results", "CON", "Fetch", "fetch", "FETCH", "ends in. ", "[end]", "[working done] x", "é"),
    *("e\u0301", "`code`", "---", "# Task: x", "nul\0byte", "\u202eevil", "-rf", "x" * 5000, "", " \n "),
]


def test_whatever_a_step_is_called_its_file_lies_in_the_workspace_and_is_its_alone(cli, skill):
    body = f"""
        names = {NAMES!r}
        if task.attempt == 1:
            for name in names:
                await task.step(name, lambda name=name: name)
            os._exit(3)
        return [await task.step(name, lambda: "ran again") for name in names]
    """
    said = cli("run", skill(body))
    assert said.code == 0, said
    assert json.loads(cli("result", cli.task().name).out) == NAMES
    where = Paths(str(cli.task()))
    steps = look(where).snapshot.steps
    assert len(steps) == len(NAMES)
    assert len({state.file.casefold() for state in steps.values()}) == len(NAMES)
    for state in steps.values():
        text = Path(where.directory, state.file).read_text("utf-8")
        assert stepfile.parse(text).checkpoints[-1].result == state.id.name
    own = {"task.md", "task-retro.md", "results", ".task"}
    assert set(os.listdir(where.directory)) == own | {state.file for state in steps.values()}
    assert look(where).face.ended
    assert len(look(where).face.steps) == len(NAMES)
