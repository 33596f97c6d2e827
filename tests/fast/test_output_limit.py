"""A file of output stays below its limit; its beginning and its end stay."""

import subprocess
import sys
import tracemalloc

import pytest

from hpo.evaluation.evaluator_process import tail
from hpo.evaluation.output_limit import OutputLimit, shorten


@pytest.mark.parametrize("lines", (10, 20_000))
def test_the_beginning_and_the_end_stay(tmp_path, lines):
    path = tmp_path / "output-0.txt"
    path.write_text("".join(f"line {number}\n" for number in range(lines)))
    before = path.stat().st_size
    for _ in range(2):  # the second time there is nothing to do
        shorten(path, 100_000)
    kept = path.read_text().splitlines()
    assert (kept[0], kept[-1]) == ("line 0", f"line {lines - 1}")
    assert path.stat().st_size < 60_000 and sum("[logging] output" in line for line in kept) == (lines > 10)
    assert all(line.startswith(("line ", "[hpo: ")) for line in kept)
    assert tail(path, before).endswith(f"line {lines - 1}") is (lines > 10)


def test_a_child_process_that_prints_without_end_is_bounded_and_its_last_words_stay(tmp_path):
    path = tmp_path / "output-0.txt"
    limit = OutputLimit(100_000)
    limit.begin(path)
    code = "for number in range(400000): print('line', number)\nprint('last words', flush=True); import os; os.abort()"
    with path.open("ab") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, timeout=60, check=False)
    limit.close()
    assert path.stat().st_size <= 100_000 and path.read_text().splitlines()[-1] == "last words"


def test_what_a_process_prints_after_its_evaluation_is_bounded(tmp_path):
    limit = OutputLimit(100_000)
    for number in range(3):
        limit.begin(tmp_path / f"{number}.txt")
    (tmp_path / "0.txt").write_text("line\n" * 100_000)
    limit.close()
    assert (tmp_path / "0.txt").stat().st_size <= 100_000


def test_a_large_file_is_shortened_without_holding_much_of_it(tmp_path):
    path, most = tmp_path / "output-0.txt", 64 << 20
    with path.open("wb") as file:
        file.write(b"first\n")
        file.truncate(2 * most)
        file.seek(0, 2)
        file.write(b"\nlast\n")
    tracemalloc.start()
    try:
        shorten(path, most)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    kept = path.read_bytes()
    assert kept.startswith(b"first\n") and kept.endswith(b"\nlast\n") and most // 4 < len(kept) <= most * 0.51
