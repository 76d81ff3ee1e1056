"""Random prompts, and the lines of files."""

from pathlib import Path

from infeng_bench.load import prompts


def test_random_ids_are_those_of_their_seed_and_index() -> None:
    first = prompts.random_ids(9, 1, 2, 300)
    assert len(first) == 9 and first == prompts.random_ids(9, 1, 2, 300)
    assert first not in (prompts.random_ids(9, 1, 3, 300), prompts.random_ids(9, 2, 2, 300))


def test_lines_of_a_file_are_kept_as_they_are_without_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "x"}\n\n  two\n')
    assert prompts.lines(str(path), None) == ['{"text": "x"}', "two"]
