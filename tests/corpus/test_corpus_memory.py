import importlib.util
from pathlib import Path

BENCHMARK = Path(__file__).parents[1] / "benchmarks/bench_corpus.py"


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("bench_corpus", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    small, large = benchmark.growth(tmp_path, sizes=(10, 50))
    assert 20 < small < 500
    assert large - small < 25  # a copy of the text would be 40; the benchmark has the full sizes
