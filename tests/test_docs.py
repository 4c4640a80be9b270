"""The generated pages are current, complete, and need no torch."""

import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from docs import build, crafting_parts
from docs.docstrings import arguments, environment_sections, sections
from docs.environment_pages import FAMILIES, specs_of, type_text
from docs.markdown import table
from docs.method_page import read_method

ROOT = Path(__file__).parents[1]


def test_the_pages_are_current_and_made_without_torch():
    blocked = "import sys, runpy; sys.modules['torch'] = None; sys.argv[1:] = ['--check']; "
    command = [sys.executable, "-c", blocked + "runpy.run_module('docs.build', run_name='__main__')"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "The pages are current.\n"), done.stdout + done.stderr


@pytest.mark.full
def test_the_measured_table_of_the_crafting_world_is_current():
    assert crafting_parts.stale_results(range(6)) == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_page_names_every_reset_option(family):
    page = (build.DOCS / "environments" / f"{family.name}.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="known: ") as refused:
        gymnasium.make(specs_of(family)[0].id).reset(options={"no such": 1})
    for option in str(refused.value).partition("known: ")[2].split(", "):
        assert f"`{option}`" in page


def test_links_lead_to_files():
    for path in [build.DOCS / page for page in build.pages()]:
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """A docs folder with one page that is current."""
    monkeypatch.setattr(build, "pages", lambda: {"environments/a.md": lambda: "as made\n"})
    (tmp_path / "docs" / "environments").mkdir(parents=True)
    (tmp_path / "docs" / "environments" / "a.md").write_text("as made\n", encoding="utf-8")
    return tmp_path / "docs"


def test_a_current_page_is_not_stale(docs):
    assert build.stale(docs) == []


def test_stale_missing_and_left_over_pages_are_named(docs):
    page = docs / "environments" / "a.md"
    page.write_text("edited by hand\n", encoding="utf-8")
    (docs / "environments" / "gone.md").write_text("", encoding="utf-8")
    gone = str(Path("docs/environments/gone.md"))
    named = str(Path("docs/environments/a.md"))
    assert build.stale(docs) == [f"{named} is stale", f"{gone} is about no environment; delete it"]
    page.unlink()
    assert build.stale(docs)[0] == f"{named} is missing"


def test_check_exits_1_and_writes_nothing(docs, monkeypatch, capsys):
    monkeypatch.setattr(build, "stale", lambda: ["docs/x.md is stale"])
    monkeypatch.setattr(crafting_parts, "stale_results", list)
    with pytest.raises(SystemExit) as left:
        build.main(["--check"])
    assert left.value.code == 1
    assert capsys.readouterr().out == "docs/x.md is stale\nWrite them anew with: python -m docs.build\n"


def test_a_changed_measured_table_is_noticed(tmp_path, monkeypatch):
    changed = tmp_path / "crafting_table.md"
    monkeypatch.setattr(crafting_parts, "RESULTS", changed)
    text = (build.DOCS / "environments" / "crafting_table.md").read_text(encoding="utf-8")
    changed.write_text(re.sub(r"over \d+ tasks", "over 5 tasks", text), encoding="utf-8")
    assert crafting_parts.stale_results() == ["tier 0 has changed"]
    changed.write_text(text.replace("| novice", "| beginner"), encoding="utf-8")
    assert crafting_parts.stale_results() == ["the columns have changed"]
    changed.write_text(re.sub(r"\n\| 5 .*", "", text), encoding="utf-8")
    assert crafting_parts.stale_results() == ["the tiers have changed"]


# --- The parts a page is made of -------------------------------------------------------------------------------------


def test_an_environment_without_a_section_is_refused():
    class Lacking:
        """What it is.

        Rules: none.
        """

    with pytest.raises(ValueError, match="Lacking has the sections"):
        environment_sections(Lacking)


def test_sections_and_arguments():
    def function():
        """What it does.

        More of it.

        Rules: one,
        and another.

            an example

        Args:
            a, b: two at
                once.
            c: one.

        Raises:
            ValueError: never.
        """

    found = sections(function)
    assert found[""] == "What it does.\n\nMore of it."
    assert found["Rules"] == "One,\nand another.\n\n    an example"
    assert arguments(function) == {"a": "two at once.", "b": "two at once.", "c": "one."}


def test_type_text_and_table():
    assert type_text(int | None) == "int or None"
    assert type_text(list[str]) == "list[str]"
    assert table(("a", "b"), [(1, "x|y")]) == "| a | b |\n| --- | --- |\n| 1 | x\\|y |"


@pytest.mark.parametrize(
    ("doc", "formula", "source"),
    [
        ("w = R (Williams 1992). returns (N,) -> (N,).", "R", "Williams 1992"),
        ("w = R - mean; the loss then divides by C (Liu et al. 2025, eq. 1).", "R - mean", "Liu et al. 2025, eq. 1"),
        ("w = (R - mean) / (std + eps) within it (X 2024).", "(R - mean) / (std + eps) within it", "X 2024"),
        ("w = 0.5 R. returns (N,) -> (N,)", "0.5 R", "–"),
    ],
)
def test_read_method(doc, formula, source):
    assert read_method("x", doc)[1:] == (formula, source)


def test_a_method_without_a_formula_is_refused():
    with pytest.raises(ValueError, match=r"weights\.x does not say"):
        read_method("x", "Something else.")
