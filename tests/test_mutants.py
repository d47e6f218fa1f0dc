"""The list of mutants fits the source and the tests as they are; `make mutants` runs them."""

import pytest
from mutants import ROOT, read_mutants

MUTANTS = read_mutants()


def test_there_are_enough_and_no_name_comes_twice():
    assert len(MUTANTS) >= 60 and len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_changes_one_place_and_names_tests_that_exist(mutant):
    source = (ROOT / "src" / mutant.file).read_text()
    changed = mutant.applied(source)  # refuses a text that does not occur exactly once
    assert changed != source and compile(changed, str(mutant.file), "exec")
    assert mutant.tests
    for test in mutant.tests:
        file, name = test.split("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text(), test


def test_a_stale_text_is_refused():
    for source in ("", 2 * MUTANTS[0].text):
        with pytest.raises(ValueError, match="not once; bring mutants.txt up to date"):
            MUTANTS[0].applied(source)
