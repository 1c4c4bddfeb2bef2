"""Skills on disk: a name leads to one, `run NAME` starts it, the shipped one is installed, what it teaches is true."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_door import DATA, NO_INPUT, USAGE, Cli, Said
from test_readme import Reader, snippets

from orchestrator import compose, files, skillfiles, skillinstall
from orchestrator.core import spec
from orchestrator.errors import BadSpec, Held, Refused, UnknownSkill, UsageError

REPOSITORY = Path(__file__).resolve().parent.parent
SHIPPED = "templates/skills/orchestrator"
PAGES = [f"{SHIPPED}/SKILL.md", f"{SHIPPED}/references/verbs.md", f"{SHIPPED}/references/files.md"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has nothing yet, in a project that has nothing yet."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "ORCHESTRATOR_ROOT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "home"


@pytest.fixture
def cli(home: Path, tmp_path: Path) -> Cli:
    return Cli(tmp_path / "project", tmp_path / "root")


def write_skill(skills: Path, name: str, more: str = "", **beside: str) -> Path:
    directory = skills / name
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text(f"---\nname: {name}\ndescription: In {skills}.\n{more}---\n", "utf-8")
    for file, text in beside.items():
        (directory / file.replace("__", ".")).write_text(text, "utf-8")
    return directory


def shipped() -> skillfiles.Found:
    found = skillfiles.find("orchestrator", skillfiles.places(os.environ))
    assert found is not None
    return found


def tree(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


# -- a name leads to a skill -----------------------------------------------------------------------------------------


def test_the_nearest_skill_of_a_name_wins(home: Path, tmp_path: Path) -> None:
    workspace = str(tmp_path / "task")
    for skills in (tmp_path / "task/skills", Path("skills"), home / ".config/orchestrator/skills"):
        write_skill(skills, "orchestrator")
    seen = []
    for place in skillfiles.places(os.environ, workspace=workspace):
        found = skillfiles.find("orchestrator", skillfiles.places(os.environ, workspace=workspace))
        assert found is not None
        assert found.place == place.label
        assert Path(found.directory).parent == Path(place.directory)
        seen.append(found.place)
        if found.place != "package":
            os.unlink(found.file)
    assert seen == ["workspace", "project", "user", "package"]


def test_a_users_skills_lie_where_their_configuration_lies(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
    write_skill(home / "settings/orchestrator/skills", "mine")
    assert skillfiles.find("mine", skillfiles.places(os.environ)) is not None


def test_a_name_that_is_a_path_leads_nowhere(home: Path) -> None:
    write_skill(Path("skills"), "a")
    write_skill(Path("elsewhere"), "b")
    for name in ("../elsewhere/b", "./a", "a/", str(Path("skills/a").absolute())):
        assert skillfiles.find(name, skillfiles.places(os.environ)) is None


def test_a_version_changes_with_the_files_of_a_skill_and_with_nothing_else(home: Path) -> None:
    directory = write_skill(Path("skills"), "a", notes__md="one")
    found = skillfiles.find("a", skillfiles.places(os.environ))
    assert found is not None
    before = skillfiles.version(found)
    (directory / ".hidden").write_text("x")
    (directory / "__pycache__").mkdir()
    (directory / "__pycache__/a.pyc").write_text("x")
    (directory / "notes.md.kept-1").write_text("x")
    assert skillfiles.version(found) == before
    (directory / "notes.md").write_text("two")
    assert skillfiles.version(found) != before


# -- run NAME --------------------------------------------------------------------------------------------------------

PYTHON = "async def work(task, who='you'):\n    return await task.step('greet', lambda: f'hello {who}')\n"
STEPS = "name: of the file\nsteps:\n  - name: one\n    run: [sh, beside.sh]\n"


@pytest.mark.parametrize("worker", ["work.py:work", "work:work"])
def test_a_skill_of_a_file_beside_its_skill_md_is_run_by_its_name(cli: Cli, worker: str) -> None:
    write_skill(Path("skills"), "greet_them", f"worker: {worker}\n", work__py=PYTHON)
    said = cli("run", "greet_them", "--arg", "who=Ada")
    assert said.code == 0, said
    assert "greet them: completed" in said.out
    assert cli("result", cli.task().name).out == '"hello Ada"\n'


def test_a_skill_of_a_steps_file_is_run_by_its_name_from_any_directory(cli: Cli) -> None:
    directory = write_skill(Path("skills"), "stepwise", "worker: s.yaml\n", s__yaml=STEPS, beside__sh="exit 0\n")
    found = compose.resolve("stepwise")
    assert (found.name, found.kind, found.source) == ("of the file", "steps", str(directory.absolute() / "s.yaml"))
    assert cli("run", "stepwise").code == 0


def test_a_skill_of_an_installed_module_is_run_by_its_name(home: Path) -> None:
    write_skill(Path("skills"), "report", "worker: orchestrator.skills.repo_report:repo_report\n")
    assert compose.resolve("report").worker == "orchestrator.skills.repo_report:repo_report"
    assert compose.resolve("report").name == "report"
    assert compose.resolve("repo_report").worker == "orchestrator.skills.repo_report:repo_report"


def test_instructions_are_not_run_and_the_way_to_run_them_is_told(cli: Cli) -> None:
    cli("run", "orchestrator").refuses(NO_INPUT, "instructions for an agent", "worker:", "SKILL.md")
    assert cli.tasks() == []


def test_an_unknown_name_is_answered_with_those_that_are_there(cli: Cli) -> None:
    write_skill(Path("skills"), "mine", "worker: m:f\n")
    cli("run", "nothing").refuses(NO_INPUT, "'nothing'", "mine, repo_report", "for agents to read: orchestrator")
    cli("skill", "show", "nothing").refuses(NO_INPUT, "'nothing'", "mine, repo_report")


def test_a_broken_skill_is_told_by_file_and_line_and_hides_no_other(cli: Cli) -> None:
    write_skill(Path("skills"), "bad", "worker: nowhere.yaml\n")
    write_skill(Path("skills"), "worse", "x: y: z\n")
    cli("run", "bad").refuses(DATA, "skills/bad/SKILL.md:4: worker: nowhere.yaml does not lie beside it")
    cli("run", "worse").refuses(DATA, "skills/worse/SKILL.md:4: not YAML")
    rows = {row["name"]: row for row in json.loads(cli("skill", "list", "--json").out)}
    assert set(rows) >= {"bad", "worse", "orchestrator", "repo_report"}
    assert "SKILL.md:4" in rows["worse"]["problem"]
    assert "cannot be used: " in cli("skill", "list").out


def test_a_skill_that_is_no_text_is_an_error_and_not_another_skill_of_that_name(home: Path) -> None:
    directory = write_skill(Path("skills"), "orchestrator")
    (directory / "SKILL.md").write_bytes(b"\xff\xfe")
    with pytest.raises(BadSpec, match="not UTF-8"):
        compose.resolve("orchestrator")


def test_a_program_is_told_of_an_unknown_skill_before_anything_is_made(home: Path) -> None:
    with pytest.raises(UnknownSkill, match="no skill that is there"):
        compose.resolve("nothing")


def test_what_is_shown_of_a_skill_is_its_text_its_place_and_its_version(cli: Cli) -> None:
    said = json.loads(cli("skill", "show", "orchestrator", "--json").out)
    assert said["place"] == "package"
    assert said["text"] == (REPOSITORY / SHIPPED / "SKILL.md").read_text("utf-8")
    assert cli("skill", "show", "orchestrator").out.startswith(f"{said['path']}  (package, version {said['version']})")
    assert "orchestrator.skills.repo_report:repo_report" in cli("skill", "show", "repo_report").out


# -- installing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "agent, user, project",
    [
        ("claude", ".claude/skills", ".claude/skills"),
        ("codex", ".agents/skills", ".agents/skills"),
        ("gemini", ".gemini/skills", ".gemini/skills"),
        ("opencode", ".config/opencode/skills", ".opencode/skills"),
    ],
)
def test_an_agent_finds_the_skill_where_it_looks_for_skills(
    cli: Cli, home: Path, agent: str, user: str, project: str
) -> None:
    wanted = tree(REPOSITORY / SHIPPED)
    for place, words in ((home / user, ()), (Path(project), ("--project",))):
        said = cli("skill", "install", "--for", agent, *words)
        assert said.code == 0, said
        found = tree(place / "orchestrator")
        assert {n: c for n, c in found.items() if not n.startswith(".")} == wanted
        paths = [line.split(maxsplit=1)[1] for line in said.out.splitlines()]
        assert paths == [str(place.absolute() / "orchestrator" / name) for name in sorted(wanted)]


def test_an_agent_that_keeps_its_files_elsewhere_is_found_there(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "other"))
    assert cli("skill", "install", "--for", "claude").code == 0
    assert (home / "other/skills/orchestrator/SKILL.md").is_file()


def test_without_a_name_the_agents_that_are_used_get_it_and_no_other(cli: Cli, home: Path) -> None:
    cli("skill", "install").refuses(USAGE, "no agent CLI", "--for")
    (home / ".claude").mkdir()
    (home / ".gemini").mkdir()
    assert cli("skill", "install").code == 0
    assert {p.relative_to(home).parts[0] for p in home.rglob("SKILL.md")} == {".claude", ".gemini"}


def test_an_agent_that_reads_the_directory_of_another_does_not_get_the_skill_twice(cli: Cli, home: Path) -> None:
    for used in (".codex", ".gemini", ".config/opencode"):
        (home / used).mkdir(parents=True)
    assert cli("skill", "install").code == 0
    assert {p.relative_to(home).parts[0] for p in home.rglob("SKILL.md")} == {".agents"}


def test_a_mistyped_agent_gets_no_directory_of_its_own(cli: Cli) -> None:
    cli("skill", "install", "--for", "cluade").refuses(USAGE, "cluade", "claude, codex, gemini, opencode")
    assert not Path("cluade").exists()
    assert cli("skill", "install", "--for", "./cluade").code == 0
    assert Path("cluade/orchestrator/SKILL.md").is_file()


def actions(said: list[skillinstall.Written]) -> set[str]:
    return {written.action for written in said}


def test_installing_again_changes_nothing_not_even_a_time(home: Path) -> None:
    into = str(home / "skills")
    assert actions(skillinstall.install(shipped(), into, force=False)) == {"wrote"}
    times = {p: p.stat().st_mtime_ns for p in Path(into).rglob("*")}
    assert actions(skillinstall.install(shipped(), into, force=False)) == {"same"}
    assert {p: p.stat().st_mtime_ns for p in Path(into).rglob("*")} == times


def test_a_file_that_was_changed_is_not_overwritten_and_nothing_else_is_either(cli: Cli, home: Path) -> None:
    cli("skill", "install", "--for", "claude")
    mine = home / ".claude/skills/orchestrator/SKILL.md"
    mine.write_text("mine")
    (mine.parent / "references/verbs.md").unlink()
    cli("skill", "install", "--for", "claude").refuses(DATA, str(mine), "nothing was written", "--force")
    assert mine.read_text() == "mine"
    assert not (mine.parent / "references/verbs.md").exists()


def test_what_force_overwrites_is_kept_aside_each_time_and_said(cli: Cli, home: Path) -> None:
    cli("skill", "install", "--for", "claude")
    mine = home / ".claude/skills/orchestrator/SKILL.md"
    for number, text in enumerate(("mine", "mine again"), 1):
        mine.write_text(text)
        said = cli("skill", "install", "--for", "claude", "--force")
        assert said.code == 0
        assert f"{mine}  (your version: {mine}.kept-{number})" in said.out
    assert [Path(f"{mine}.kept-{n}").read_text() for n in (1, 2)] == ["mine", "mine again"]
    assert mine.read_bytes() == (REPOSITORY / SHIPPED / "SKILL.md").read_bytes()


def test_a_file_of_an_older_version_that_nobody_changed_is_brought_up_to_date(home: Path) -> None:
    into, old = str(home / "skills"), home / "old"
    directory = write_skill(old, "orchestrator", references="not yet a directory")
    (directory / "references").unlink()
    (older,) = skillfiles.everything([skillfiles.Place("project", str(old))])
    skillinstall.install(older, into, force=False)
    said = skillinstall.install(shipped(), into, force=False)
    assert {Path(w.path).name: w.action for w in said}["SKILL.md"] == "updated"
    assert not list(Path(into).rglob("*.kept-*"))


def test_a_file_that_we_never_wrote_counts_as_the_users(home: Path) -> None:
    mine = write_skill(home / "skills", "orchestrator")
    before = tree(mine)
    with pytest.raises(Refused):
        skillinstall.install(shipped(), str(home / "skills"), force=False)
    assert tree(mine) == before


def test_a_lost_or_broken_memory_of_what_was_installed_loses_no_change(home: Path) -> None:
    into = str(home / "skills")
    skillinstall.install(shipped(), into, force=False)
    target = home / "skills/orchestrator"
    (target / skillinstall.REMEMBERED).write_text("{torn")
    (target / "SKILL.md").write_text("mine")
    with pytest.raises(Refused):
        skillinstall.install(shipped(), into, force=False)
    assert (target / "SKILL.md").read_text() == "mine"


def test_a_link_is_not_followed_to_write_somewhere_else(home: Path) -> None:
    other = home / "other.md"
    other.write_text("somebody's")
    (home / "skills/orchestrator").mkdir(parents=True)
    (home / "skills/orchestrator/SKILL.md").symlink_to(other)
    with pytest.raises(Refused, match="no plain file"):
        skillinstall.install(shipped(), str(home / "skills"), force=True)
    assert other.read_text() == "somebody's"


def test_a_file_in_the_way_is_told_and_left(home: Path) -> None:
    (home / "skills").mkdir()
    (home / "skills/orchestrator").write_text("mine")
    with pytest.raises(UsageError, match="in the way"):
        skillinstall.install(shipped(), str(home / "skills"), force=True)
    assert (home / "skills/orchestrator").read_text() == "mine"


def test_two_that_install_at_once_do_not_mix_their_files(home: Path) -> None:
    (home / "skills/orchestrator").mkdir(parents=True)
    lock = files.lock_directory(str(home / "skills/orchestrator"))
    assert lock is not None
    with pytest.raises(Held):
        skillinstall.install(shipped(), str(home / "skills"), force=False)
    os.close(lock)


# -- what the shipped skill teaches ----------------------------------------------------------------------------------


def test_the_skill_is_short_enough_to_be_read_and_its_description_to_be_offered() -> None:
    found = shipped()
    assert found.skill is not None
    assert len((REPOSITORY / SHIPPED / "SKILL.md").read_text("utf-8").split()) < 1500
    assert len(found.skill.description) <= 1024
    for link in re.findall(r"\]\(([^)]+)\)", found.skill.body):
        assert (REPOSITORY / SHIPPED / link).is_file(), link


def test_every_session_of_the_skill_goes_as_it_says(home: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for snippet in snippets(f"{SHIPPED}/SKILL.md"):
        if snippet.language == "yaml":
            reader.saves(snippet)
        else:
            assert snippet.language == "console"
            reader.types(snippet.text)


def test_the_steps_file_of_the_references_is_one() -> None:
    (shown,) = (s.text for s in snippets(f"{SHIPPED}/references/files.md") if s.language == "yaml")
    assert len(spec.parse_steps(shown, "shown.yaml").steps) == 2


#: A skill for every state in which a command of the pages makes sense. `mended` is a file: the cause is mended.
STATES = """\
from pathlib import Path

async def failed(task):
    def step():
        if not Path("mended").exists():
            raise RuntimeError("not mended")
    await task.step("one", step, retries=0)

async def done(task):
    return await task.step("one", lambda: 1)

async def uncertain(task):
    def step():
        raise RuntimeError("who knows")
    return await task.step("one", step, effect="once", retries=0)

async def question(task):
    await task.step("one", lambda: 1)
    answer = await task.ask("which?")
    return await task.step("two", lambda: answer)
"""

#: Verb -> the state of the task it is shown for.
SHOWN_FOR = {
    **dict.fromkeys(("delegate", "list", "skill", "spawn", "run", "recover", "show", "explain", "wait"), "done"),
    **dict.fromkeys(("logs", "result", "retro", "doctor", "adopt"), "done"),
    "redo": "done",
    **dict.fromkeys(("retry", "skip"), "failed"),
    "resolve": "uncertain",
    **dict.fromkeys(("pause", "continue", "send", "answer", "cancel"), "question"),
}


def shown_commands() -> list[str]:
    """Every `orchestrator …` that stands in the pages' prose and tables, once."""
    found: set[str] = set()
    for page in PAGES:
        text = (REPOSITORY / page).read_text("utf-8")
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        found.update(re.findall(r"`orchestrator ([a-z][^`]*)`", text))
    return sorted(found)


def completed(said: Said, allowed: tuple[int, ...] = (0,)) -> None:
    assert said.code in allowed, said


@pytest.fixture
def task_in(cli: Cli) -> Callable[[str], str]:
    """Makes a task that is in a state."""
    Path("states.py").write_text(STATES)
    Path("words.yaml").write_text("steps:\n  - {name: one, shell: 'true'}\n")

    def make(state: str) -> str:
        before = set(cli.tasks())
        completed(cli("run", f"states.py:{state}"), (0, 1, 75))
        (new,) = set(cli.tasks()) - before
        return new.name

    return make


def occasions() -> dict[str, list[str]]:
    """The commands that are tried on one task: those that leave it as it is together, the others each alone."""
    found: dict[str, list[str]] = {}
    for shown in shown_commands():
        verb = shown.split()[0]
        changes = SHOWN_FOR[verb] != "done" or verb == "redo"
        together = "what looks at a task" if "TASK" in shown else "what stands beside a task"
        found.setdefault(shown if changes else together, []).append(shown)
    return found


@pytest.mark.parametrize("occasion", occasions())
def test_every_command_that_the_skill_shows_does_something(
    occasion: str, cli: Cli, task_in: Callable[[str], str]
) -> None:
    (state,) = {SHOWN_FOR[shown.split()[0]] for shown in occasions()[occasion]}
    task = task_in(state)
    foreign = Path("foreign")
    foreign.mkdir()
    (foreign / "task.md").write_text("# Task: begun elsewhere\n## Status: working\n\n[start done]\n[working] one\n")
    values = {
        "DIR": "foreign",
        "TASK": task,
        "STEP": "one",
        "TEXT": "'some words'",
        "WORKER": "states.py:done",
        "N": "20000",
    }
    for shown in occasions()[occasion]:
        verb = shown.split()[0]
        if verb == "continue":
            completed(cli("pause", task))
        words = shlex.split(re.sub(r"\b(DIR|TASK|STEP|TEXT|WORKER|N)\b", lambda word: values[word[1]], shown))
        completed(cli(*words), (0, 1) if verb == "doctor" else (0,))  # 1: there is something for a person


#: What a main session cannot do its work without.
NEEDED = set(
    "adopt answer cancel continue delegate doctor explain list logs pause recover redo resolve result retro retry run"
    " send show skip spawn wait".split()
)


def test_no_verb_that_a_main_session_needs_is_kept_from_it() -> None:
    from orchestrator.cli.group import ROOMS

    there = {name for _, names in ROOMS.values() for name in names}
    taught = {shown.split()[0] for shown in shown_commands()}
    assert taught <= there
    assert NEEDED & there <= taught, "add it to references/verbs.md of the shipped skill"
