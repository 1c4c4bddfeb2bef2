"""SKILL.md: what of its front matter is understood, how a mistake in it is told, and a skill's version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import skill
from orchestrator.errors import BadSpec

GOOD = "---\nname: tidy\ndescription: Tidies up.\nlicense: MIT\nworker: tidy.py:tidy\n---\n\n# Tidy\n"


def test_a_skill_says_its_name_what_it_is_for_and_who_works() -> None:
    found = skill.parse(GOOD, "SKILL.md", "tidy")
    assert (found.name, found.description, found.worker) == ("tidy", "Tidies up.", "tidy.py:tidy")
    assert found.worker_line == 5
    assert found.body == "\n# Tidy\n"


def test_a_skill_saved_on_windows_or_over_several_lines_is_the_same_skill() -> None:
    assert skill.parse("\ufeff" + GOOD.replace("\n", "\r\n"), "SKILL.md", "tidy") == skill.parse(GOOD, "x", "tidy")
    folded = GOOD.replace("Tidies up.", ">-\n  Tidies\n  up.").replace("worker: tidy.py:tidy\n", "")
    assert skill.parse(folded, "SKILL.md", "tidy").description == "Tidies up."
    assert skill.parse(folded, "SKILL.md", "tidy").worker is None


@pytest.mark.parametrize(
    "text, said",
    [
        ("# Tidy\n", "s/SKILL.md:1: there is no front matter"),
        ("---\nname: tidy\n", "s/SKILL.md:1: the front matter has no end"),
        ("---\n- a\n---\n", "s/SKILL.md:2: the front matter is no mapping"),
        ("---\n---\n", "s/SKILL.md:2: the front matter is no mapping"),
        ("---\nname: tidy\ndescription: this: that\n---\n", "s/SKILL.md:3: not YAML"),
        (GOOD.replace("name: tidy\n", ""), "s/SKILL.md:1: `name` is missing"),
        (GOOD.replace("Tidies up.", "3"), "s/SKILL.md:3: `description` is not a text"),
        (GOOD.replace("Tidies up.", "''"), "s/SKILL.md:3: `description` is empty"),
        (GOOD.replace("Tidies up.", "x" * 1025), "s/SKILL.md:3: the description has 1025 characters"),
        (GOOD.replace("name: tidy", "name: other"), "s/SKILL.md:2: the name 'other' is not that of its directory"),
        (GOOD.replace("tidy.py:tidy", "tidy"), "s/SKILL.md:5: worker: 'tidy' is none"),
        (GOOD.replace("tidy.py:tidy", "../a.py:f"), "s/SKILL.md:5: worker: '../a.py' does not lie beside the skill"),
        (GOOD.replace("tidy.py:tidy", "/etc/a.yaml"), "s/SKILL.md:5: worker: '/etc/a.yaml' does not lie beside"),
        (GOOD.replace("tidy.py:tidy", "[1]"), "s/SKILL.md:5: `worker` is not a text"),
    ],
)
def test_a_mistake_in_a_skill_is_told_with_its_line_and_a_way_out(text: str, said: str) -> None:
    with pytest.raises(BadSpec) as error:
        skill.parse(text, "s/SKILL.md", "tidy")
    assert error.value.what.startswith(said)
    assert error.value.hint


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "-x", "x" * 65, "a\n"])
def test_no_name_leads_out_of_the_directories_of_skills(name: str) -> None:
    assert not skill.is_name(name)


files = st.dictionaries(st.text(), st.binary(), min_size=1)


@given(files, st.randoms())
def test_a_version_does_not_depend_on_the_order_in_which_a_disk_lists_files(found: dict[str, bytes], random) -> None:
    pairs = list(found.items())
    random.shuffle(pairs)
    assert skill.version(pairs) == skill.version(found.items())


@given(files, files)
def test_two_skills_have_one_version_only_if_they_are_the_same(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert (skill.version(one.items()) == skill.version(other.items())) == (one == other)


def test_what_moves_from_a_name_into_a_content_is_another_version() -> None:
    assert skill.version([("ab", b"c")]) != skill.version([("a", b"bc")])
    assert skill.version([("a", b""), ("b", b"")]) != skill.version([("a", b"b")])
